-- One check: reads the clock once, lets the one twin in this script decide, writes the state with its end in one command.
-- KEYS[1]  the state
-- ARGV[1]  take (charge if it fits) or look (change nothing)
-- ARGV[2]  the cost and the numbers of the limit
-- reply    now, allowed (1 byte), remaining, retry_after, reset_after; all but the byte are little-endian doubles, times
--          are microseconds
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local key, verb = KEYS[1], ARGV[1]

if twins.sl then
  local allowed, remaining, retry_after, reset_after = twins.sl(ARGV[2], key, now, verb)
  return struct.pack('<dBddd', now, allowed and 1 or 0, remaining, retry_after, reset_after)
end

local _, decide = next(twins)
local allowed, remaining, retry_after, reset_after, changed = decide(ARGV[2], redis.call('GET', key), now, verb == 'take')
if changed and verb == 'take' then
  redis.call('SET', key, changed, 'PX', string.format('%d', math.ceil(reset_after / 1000) + SLACK))
end
return struct.pack('<dBddd', now, allowed and 1 or 0, remaining, retry_after, reset_after)
