-- sliding_log: keeps each admitted call. Twin: tallygate/src/algorithm/sliding_log.rs
-- limit: cost, amount (units); window (microseconds)
-- state: a sorted set with one member for each admitted call, its score the microsecond. A member is that microsecond, the
--   running sum of units before the call, its own units, the limit's window in milliseconds, and the version; big-endian, so that the
--   members of one microsecond are ordered by their sums. Running sums wrap around at 10^15: far above any amount,
--   and exact in a double
-- Constant arguments are written as text, because a server formats numbers slowly.
-- A log is too long to be loaded as a whole, so this twin reads and writes it itself: at most a binary search and a
-- bounded number of members.
local cost, amount, window = struct.unpack('<ddd', packed)

-- The log as of now, converted to the limit: when its newest call was and the running sums before and after it; how many calls no
-- longer count; the oldest that does, when it was, and the running sums before and after it.
local newest_at, newest_before, newest_sum, expired, first_at, first_before, first_sum = nil, 0, 0, 0, nil, 0, 0
local oldest = redis.call('ZRANGE', key, '0', '1')
-- A log of which units are held or owed has one more member, at its end.
local last = head and head.member and '-2' or '-1'
if head and #oldest > 0 and oldest[#oldest] == head.member then oldest[#oldest] = nil end
if oldest[1] then
  local newest = oldest[1]
  if oldest[2] then newest = redis.call('ZRANGE', key, last, last)[1] end
  if #oldest[1] ~= 24 or #newest ~= 24 then return '!' .. string.sub(newest, -1) end
  local units, old_window, version
  newest_at, newest_before, units, old_window, version = struct.unpack('>I7I7I4I5B', newest)
  if version ~= 1 or newest_before >= 1000000000000000 then return '!' .. string.sub(newest, -1) end
  newest_sum, old_window = (newest_before + units) % 1000000000000000, old_window * 1000
  local held = now
  if held < newest_at then held = newest_at end
  -- Usually one of the two oldest is the first that counts.
  local first = oldest[1]
  if struct.unpack('>I7', first) + old_window <= held then
    expired, first = 1, oldest[2]
    if first and #first ~= 24 then return '!' end
    if not first or struct.unpack('>I7', first) + old_window <= held then
      expired = redis.call('ZCOUNT', key, '-inf', string.format('%.0f', held - old_window))
      first = redis.call('ZRANGE', key, expired, expired)[1]
      if head and first and first == head.member then first = nil end
    end
  end
  first_before, first_sum = newest_sum, newest_sum
  if first then
    if #first ~= 24 then return '!' end
    first_at, first_before, units = struct.unpack('>I7I7I4', first)
    first_sum = (first_before + units) % 1000000000000000
  end
  if window ~= old_window or newest_at > now + window then
    local total = (newest_sum - first_before) % 1000000000000000
    -- What is owed stays used under other numbers.
    local most = head and amount + math.min(head.debt, amount) or amount
    if total > most then total = most end
    newest_at, newest_before, newest_sum, expired, first_at, first_before, first_sum = now, 0, total, 0, now, 0, total
    changed = true
  end
end
local total = (newest_sum - first_before) % 1000000000000000

-- A converted log is one call at the current instant. It replaces the log, unless nothing is to be written.
if changed and verb ~= 'peek' then
  local ttl = string.format('%.0f', 2 * window / 1000 + SLACK)
  -- Tried on the old log first: if the permission to set a TTL is missing, nothing has changed yet.
  redis.call('PEXPIRE', key, ttl)
  redis.call('UNLINK', key)
  last = '-1'
  if head then head.member = nil end
  if total > 0 then
    redis.call('ZADD', key, string.format('%.0f', now), struct.pack('>I7I7I4I5B', now, 0, total, window / 1000, 1))
    redis.call('PEXPIRE', key, ttl)
  end
end

if verb == 'refund' then
  -- Gives back the call itself if it is the newest, otherwise the oldest units: what is left then counts for
  -- longest, so a refund never exceeds a bound. It scans at most 1000 calls.
  local held = now
  if newest_at and newest_at > now then held = newest_at end
  local newest, newest_units
  if total > 0 and newest_at == charged_at and cost > 0 then
    newest = redis.call('ZRANGE', key, last, last)[1]
    newest_units = select(3, struct.unpack('>I7I7I4', newest))
  end
  if newest and newest_units >= cost then
    if newest_units > cost then
      local left = struct.pack('>I7I7I4I5B', newest_at, newest_before, newest_units - cost, window / 1000, 1)
      redis.call('ZADD', key, string.format('%.0f', newest_at), left)
    end
    redis.call('ZREM', key, newest)
    given = cost
  elseif total > 0 and charged_at + window > held then
    local walked = redis.call('ZRANGE', key, expired, expired + 999)
    local gone, left_from = 0, (first_before + cost) % 1000000000000000
    for i = 1, #walked do
      if head and walked[i] == head.member then break end
      if #walked[i] ~= 24 then return '!' end
      local at, before, units = struct.unpack('>I7I7I4', walked[i])
      given = (before + units - first_before) % 1000000000000000
      if given > cost then
        if before ~= left_from then
          local left = struct.pack('>I7I7I4I5B', at, left_from, given - cost, window / 1000, 1)
          redis.call('ZADD', key, string.format('%.0f', at), left)
          redis.call('ZREM', key, walked[i])
        end
        given = cost
        break
      end
      gone = i
    end
    if gone > 0 then redis.call('ZREMRANGEBYRANK', key, expired, expired + gone - 1) end
  end
else
  remaining = amount - total
  if remaining < 0 then remaining = 0 end
  allowed = remaining >= cost or verb == 'charge'
  if not allowed then
    -- The oldest call with which enough units stop counting, by binary search. Units refunded before the next call stop
    -- counting with it.
    local needed = total + cost - amount
    if (first_sum - first_before) % 1000000000000000 < needed then
      local low, high = expired, redis.call('ZCARD', key) + tonumber(last)
      while low < high do
        local middle = math.floor((low + high) / 2)
        local member = redis.call('ZRANGE', key, middle + 1, middle + 1)[1]
        if #member ~= 24 then return '!' end
        local before = select(2, struct.unpack('>I7I7', member))
        if (before - first_before) % 1000000000000000 >= needed then high = middle else low = middle + 1 end
      end
      first_at = struct.unpack('>I7', redis.call('ZRANGE', key, low, low)[1])
    end
    retry_after = first_at + window - now
  elseif verb == 'check' or verb == 'charge' then
    local at = now
    if newest_at and newest_at > now then at = newest_at end
    -- Calls at one instant are ordered by the sums before them, so the first after a wrap around must come later.
    if newest_sum < newest_before and newest_at == at then at = at + 1 end
    local member = struct.pack('>I7I7I4I5B', at, newest_sum, cost, window / 1000, 1)
    redis.call('ZADD', key, string.format('%.0f', at), member)
    -- Twice the window, set by the first call of each window: long enough for all later ones.
    if changed or not newest_at or at - at % window ~= newest_at - newest_at % window then
      local ended = redis.pcall('PEXPIRE', key, string.format('%.0f', 2 * window / 1000 + SLACK))
      if type(ended) == 'table' and ended.err then
        -- No call is better than a log without a TTL.
        redis.call('ZREM', key, member)
        error(ended.err)
      end
    end
    -- Drops more than it adds, so that the log shrinks to the calls that count.
    if expired > 0 then redis.call('ZREMRANGEBYRANK', key, '0', math.min(expired, 16) - 1) end
    remaining, total, newest_at = remaining - cost, total + cost, at
  end
  if total > amount then remaining, debt = 0, total - amount end
  if total > 0 then reset_after = newest_at + window - now end
end
