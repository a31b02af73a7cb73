-- sliding_log: remembers each admitted call. Twin: tollgate/src/algorithm/sliding_log.rs
-- limit: cost, amount (units); window (microseconds)
-- state: a sorted set with one member for each admitted call, its score the microsecond. A member is that microsecond, the
--   running sum of units before the call, its own units, and the limit's window in milliseconds; big-endian, so that the
--   members of one microsecond are in the order of their sums
-- A log is too long to be loaded whole, so this twin reads and writes it itself: never more than a binary search, and
-- never more than a bounded number of members.

-- Running sums start over here: far above any amount, and exact in a double.
local CYCLE = 1000000000000000
-- Expired calls dropped for each admitted one: more than one, so that the log shrinks to what counts.
local TRIM = 16
-- The most calls a refund walks.
local REFUND_CALLS = 1000
local MEMBER = '>I7I7I4I5'

-- When a call was, the running sums before and after it, and its window.
local function read(member)
  local at, before, units, window = struct.unpack(MEMBER, member)
  return at, before, (before + units) % CYCLE, window * 1000
end

local function call_at(key, rank)
  return read(redis.call('ZRANGE', key, rank, rank)[1])
end

-- How many calls no longer count, and the oldest that does. As a rule it is one of the two oldest, which are given.
local function first_after(key, instant, oldest)
  for expired = 0, 1 do
    local member = oldest[expired + 1]
    if member and struct.unpack('>I7', member) > instant then return expired, read(member) end
  end
  local expired = redis.call('ZCOUNT', key, '-inf', string.format('%.0f', instant))
  return expired, call_at(key, expired)
end

-- The log at now, made to fit the limit: when its newest call was and the running sum after it, the rank and the time of
-- the oldest that counts and the running sums before and after that. The last value says that it had to be: then it is
-- one call that is not written yet.
local function fit(key, now, amount, window)
  local oldest = redis.call('ZRANGE', key, 0, 1)
  if not oldest[1] then return nil, 0, 0, nil, 0, 0, false end
  local newest = oldest[2] and redis.call('ZRANGE', key, -1, -1)[1] or oldest[1]
  local newest_at, _, newest_sum, old_window = read(newest)
  local held = now
  if held < newest_at then held = newest_at end
  local expired, first_at, first_before, first_sum
  if newest_at + old_window <= held then
    expired, first_before, first_sum = redis.call('ZCARD', key), newest_sum, newest_sum
  else
    expired, first_at, first_before, first_sum = first_after(key, held - old_window, oldest)
  end
  if window == old_window and newest_at <= now + window then
    return newest_at, newest_sum, expired, first_at, first_before, first_sum, false
  end
  local units = math.min((newest_sum - first_before) % CYCLE, amount)
  if units == 0 then return nil, 0, 0, nil, 0, 0, true end
  return now, units, 0, now, 0, units, true
end

-- The rank of the oldest call from low to high up to which at least so many units count.
local function rank_of(key, units, first_before, low, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, _, sum = call_at(key, middle)
    if (sum - first_before) % CYCLE >= units then high = middle else low = middle + 1 end
  end
  return low
end

local function add(key, at, before, units, window)
  redis.call('ZADD', key, string.format('%.0f', at), struct.pack(MEMBER, at, before, units, window / 1000))
end

-- Replaces the whole log by what was made to fit.
local function rewrite(key, now, units, window)
  redis.call('UNLINK', key)
  if units > 0 then
    add(key, now, 0, units, window)
    redis.call('PEXPIRE', key, string.format('%.0f', window / 1000 + SLACK))
  end
end

twins.sl = function(packed, key, now, mode)
  local cost, amount, window = struct.unpack('<ddd', packed)
  local newest_at, newest_sum, expired, first_at, first_before, first_sum, adopted = fit(key, now, amount, window)
  local total = (newest_sum - first_before) % CYCLE
  local free = amount - total
  if free < 0 then free = 0 end
  local allowed, retry_after = free >= cost, 0
  local reset_after = total > 0 and newest_at + window - now or 0
  if adopted and mode ~= 'look' then rewrite(key, now, newest_sum, window) end
  if not allowed then
    local needed = total + cost - amount
    if (first_sum - first_before) % CYCLE < needed then
      first_at = call_at(key, rank_of(key, needed, first_before, expired, redis.call('ZCARD', key) - 1))
    end
    retry_after = first_at + window - now
  elseif mode == 'take' then
    local at = now
    if newest_at and newest_at > now then at = newest_at end
    if newest_sum + cost >= CYCLE and newest_at == at then
      -- Calls of one instant are ordered by their sums: the one that starts over comes later.
      at = at + 1
    end
    add(key, at, newest_sum, cost, window)
    if expired > 0 then redis.call('ZREMRANGEBYRANK', key, 0, math.min(expired, TRIM) - 1) end
    -- Twice the window, set by the first call of each window: long enough for all the others.
    if adopted or not newest_at or math.floor(newest_at / window) ~= math.floor(at / window) then
      redis.call('PEXPIRE', key, string.format('%.0f', 2 * window / 1000 + SLACK))
    end
    free, reset_after = free - cost, at + window - now
  end
  return allowed, free, retry_after, reset_after, adopted
end

if refunds then
  -- The oldest units are given back first: what is left then counts for longest, so a refund never lifts a bound.
  refunds.sl = function(packed, key, now, charged_at)
    local units, amount, window = struct.unpack('<ddd', packed)
    local newest_at, newest_sum, expired, first_at, first_before, first_sum, adopted = fit(key, now, amount, window)
    local held = now
    if newest_at and newest_at > now then held = newest_at end
    local total = (newest_sum - first_before) % CYCLE
    if charged_at + window <= held then units = 0 end
    if adopted then
      local given = math.min(units, total)
      rewrite(key, now, total - given, window)
      return given
    end
    if units == 0 or total == 0 then return 0 end
    local last = math.min(redis.call('ZCARD', key), expired + REFUND_CALLS) - 1
    local _, _, last_sum = call_at(key, last)
    local given = math.min(units, (last_sum - first_before) % CYCLE)
    -- The first call of which something is left, or the one after the last.
    local rank = rank_of(key, given + 1, first_before, expired, last)
    local member = redis.call('ZRANGE', key, rank, rank)[1]
    local at, before, sum = read(member)
    local left_from = (first_before + given) % CYCLE
    if (sum - first_before) % CYCLE <= given then
      rank = rank + 1
    elseif before ~= left_from then
      add(key, at, left_from, (sum - left_from) % CYCLE, window)
      redis.call('ZREM', key, member)
    end
    if rank > expired then redis.call('ZREMRANGEBYRANK', key, expired, rank - 1) end
    return given
  end
end
