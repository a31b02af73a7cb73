-- The common reservation, or several of one state: each has one check that enforces, no hold is due, nothing is owed, and the state has the
-- numbers of the limit. It means what the rest of call.lua means, which the server then does not come to: so its functions are not created.
-- Whatever is not so, and what the server refuses, is left to the rest: nothing was written until then.
-- The twin is inlined. It finds the state in `state`, and leaves it there.
repeat
  local calls, key, opens = tonumber(ARGV[1]), KEYS[1], KEYS[2]
  local spec, standing = KIND .. 'e--\0\0\0\0\0\0\0\0', KIND == 'cw' and '0hc' or '0h-'
  if ARGV[2] ~= 'reserve' or ARGV[4] ~= spec then break end
  local state, held, count, due, last, owed = redis.pcall('GET', key), 0, 0, 0, 0, 0
  if type(state) == 'table' then break end
  if state and string.byte(state) == 2 then
    if #state <= 41 then break end
    held, count, due, last, owed = struct.unpack('<ddddd', state, #state - 39)
    if not (held >= 0 and held < 2 ^ 53 and count >= 1 and count < 2 ^ 53 and due > now and due < 2 ^ 53 and last >= 0 and last < 2 ^ 53
      and owed == 0 and held % 1 == 0 and count % 1 == 0 and due % 1 == 0 and last % 1 == 0) then
      break
    end
    state = '\1' .. string.sub(state, 2, -41)
  end
  local replies, entries, records, left_out = {}, { 'ZADD', opens }, {}, false
  for i = 1, calls do
    local packed, terms = ARGV[4 * i + 1], ARGV[4 * i - 1]
    if KEYS[3 * i - 2] ~= key or ARGV[4 * i - 2] ~= 'reserve' or ARGV[4 * i] ~= spec or string.sub(terms, 1, 3) ~= standing then
      left_out = true
      break
    end
    local cost, capacity = struct.unpack('<dd', packed)
    local id, ttl, grants, most_open, most_held = struct.unpack('<c16dc2dd', terms, 4)
    local verb, charged_at, head, converted = 'check', now, nil, false
    local allowed, remaining, retry_after, reset_after, changed, given, debt = false, 0, 0, 0, false, 0, 0
    do
--[[twin]]
    end
    if allowed and (KIND == 'fw' or KIND == 'cw') and remaining + cost == capacity then held = 0 end
    if converted or debt > 0
      or allowed and (count >= most_open or math.min(held, capacity - remaining - cost) + cost > most_held) then
      left_out = true
      break
    end
    if allowed then
      local deadline = now + ttl
      if count == 0 or deadline < due then due = deadline end
      count, held = count + 1, held + cost
      local counts_until = math.max(deadline, now + reset_after)
      if counts_until > last then last = counts_until + math.min(counts_until - now, 3600000000) end
      entries[#entries + 1] = string.format('%.0f', deadline)
      entries[#entries + 1] = struct.pack('<c16ddc1', id, cost, now, grants)
      records[#records + 1] = KEYS[3 * i]
      records[#records + 1] = struct.pack('<Bc1ddddBc2c2dddddBI2', 1, 'o', now, deadline, deadline + RETENTION, 0, 1, KIND, grants, cost, cost,
        0, 0, 0, #packed - 8, #key) .. string.sub(packed, 9) .. key
      records[#records + 1] = string.format('%.0f', math.ceil((ttl + RETENTION) / 1000) + SLACK)
    end
    local flag = allowed and 1 or 0
    replies[i] = struct.pack('<BdBdddddd', flag, now, flag, remaining, retry_after, reset_after, allowed and cost or 0,
      math.min(held, capacity - remaining), 0)
  end
  if left_out then break end
  if #records > 0 then
    -- The state counts no longer than its holds are kept.
    local lifetime = string.format('%.0f', math.ceil((last - now) / 1000) + SLACK)
    state = '\2' .. string.sub(state, 2) .. struct.pack('<ddddd', held, count, due, last, 0)
    local written = redis.pcall('SET', key, state, 'PX', lifetime)
    if type(written) == 'table' and written.err then break end
    redis.call(unpack(entries))
    redis.call('PEXPIRE', opens, lifetime)
    for i = 1, #records, 3 do redis.call('SET', records[i], records[i + 1], 'PX', records[i + 2]) end
  end
  return calls == 1 and replies[1] or replies
until true
