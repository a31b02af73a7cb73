-- The common reservation, or several of one state and one limit: each has one check that enforces, no hold is due, nothing is owed, and the
-- state has the numbers of the limit. It means what the rest of call.lua means, which the server then does not come to: so its functions are
-- not created. What is not so, and what the server refuses, is left to the rest: nothing was written until then.
-- The twin is inlined. It finds the state in `state`, and leaves it there.
-- KEYS     the state, its open holds, and for each call its record
-- ARGV[1]  the length (2 bytes), and the cost of the first check and the numbers of the limit as in check.lua; then for each call its cost (a
--          double) and its terms as in call.lua, without the first three bytes and the calendars
-- reply    that of call.lua, or of a twin that cannot decide any of the calls
repeat
  local NEVER_RENEWED = '\0\0\0\0\0\0\0\0'
  local ENDS_WINDOWS = KIND == 'fw' or KIND == 'cw'
  local pack, unpack_at = struct.pack, struct.unpack
  local calls, key, opens, asked = #KEYS - 2, KEYS[1], KEYS[2], ARGV[1]
  local state, held, count, due, last, owed = redis.pcall('GET', key), 0, 0, 0, 0, 0
  local left_out = type(state) == 'table'
  if not left_out and state and string.byte(state) == 2 then
    if #state > 41 then held, count, due, last, owed = unpack_at('<ddddd', state, #state - 39) end
    left_out = not (held >= 0 and held < 2 ^ 53 and count >= 1 and count < 2 ^ 53 and due > now and due < 2 ^ 53 and last >= 0
      and last < 2 ^ 53 and owed == 0 and held % 1 == 0 and count % 1 == 0 and due % 1 == 0 and last % 1 == 0)
    state = '\1' .. string.sub(state, 2, -41)
  end
  local size, usual, capacity = unpack_at('<I2dd', asked)
  local packed, numbers = string.sub(asked, 3, 2 + size), string.sub(asked, 11, 2 + size)
  local replies, entries, open, records, lifetimes = { false }, { 'ZADD', opens, false, false }, 0, { false }, { false }
  for i = 1, left_out and 0 or calls do
    local cost, id, ttl, life, grants, most_open, most_held = unpack_at('<dc16ddc2dd', asked, size + 58 * i - 55)
    if cost ~= usual then packed, usual = pack('<d', cost) .. numbers, cost end
    local verb, charged_at, head, converted = 'check', now, nil, false
    local allowed, remaining, retry_after, reset_after, changed, given, debt = false, 0, 0, 0, false, 0, 0
    do
--[[twin]]
    end
    if allowed and ENDS_WINDOWS and remaining + cost == capacity then held = 0 end
    left_out = converted or debt > 0
      or allowed and (count >= most_open or math.min(held, capacity - remaining - cost) + cost > most_held)
    if left_out then break end
    local flag, units, record = 0, 0, false
    if allowed then
      local deadline = now + ttl
      if count == 0 or deadline < due then due = deadline end
      flag, units, count, held = 1, cost, count + 1, held + cost
      local counts_until = math.max(deadline, now + reset_after)
      if counts_until > last then last = counts_until + math.min(counts_until - now, 3600000000) end
      open = open + 1
      -- Whole numbers are written alike by the server and by %.0f.
      entries[2 * open + 1], entries[2 * open + 2] = deadline, pack('<c16ddc1', id, cost, now, grants)
      record = pack('<Bc1ddddBc2c2dddddBI2', 1, 'o', now, deadline, deadline + RETENTION, 0, 1, KIND, grants, cost, cost, 0, 0, 0, #numbers, #key)
        .. numbers .. key .. NEVER_RENEWED .. pack('<d', now + life)
    end
    records[i], lifetimes[i] = record, math.ceil((ttl + RETENTION) / 1000) + SLACK
    replies[i] = pack('<BdBdddddd', flag, now, flag, remaining, retry_after, reset_after, units, math.min(held, capacity - remaining), 0)
  end
  if not left_out and open > 0 then
    -- The state counts no longer than its holds are kept.
    local lifetime = math.ceil((last - now) / 1000) + SLACK
    local written = redis.pcall('SET', key, '\2' .. string.sub(state, 2) .. pack('<ddddd', held, count, due, last, 0), 'PX', lifetime)
    left_out = type(written) == 'table' and written.err
    if not left_out then
      redis.call(unpack(entries))
      redis.call('PEXPIRE', opens, lifetime)
      for i = 1, calls do
        if records[i] then redis.call('SET', KEYS[i + 2], records[i], 'PX', lifetimes[i]) end
      end
    end
  end
  if not left_out then return calls == 1 and replies[1] or replies end
  -- The keys and arguments as call.lua takes them.
  local keys, args = {}, { string.format('%.0f', calls) }
  for i = 1, calls do
    local at = size + 58 * i - 55
    local terms = '0h-' .. string.sub(asked, at + 8, at + 57)
    if KIND == 'cw' then terms = '0hc' .. string.sub(terms, 4) .. string.sub(numbers, 25, 32) .. string.sub(numbers, -8) end
    keys[3 * i - 2], keys[3 * i - 1], keys[3 * i] = key, opens, KEYS[i + 2]
    args[4 * i - 2], args[4 * i - 1], args[4 * i], args[4 * i + 1] =
      'reserve', terms, KIND .. 'e--\0\0\0\0\0\0\0\0', string.sub(asked, at, at + 7) .. numbers
  end
  KEYS, ARGV = keys, args
until true
