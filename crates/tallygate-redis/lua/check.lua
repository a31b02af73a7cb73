-- One check of a packed state: reads the clock once, lets the twin decide, writes state and time to live in one command.
-- KEYS[1]  the state
-- ARGV[1]  the cost and the numbers of the limit, as little-endian doubles
-- reply    now, allowed (1 byte), remaining, retry_after, reset_after: little-endian doubles, times in microseconds
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local verb, packed, charged_at = 'take', ARGV[1], 0
local value = redis.call('GET', KEYS[1])
local allowed, remaining, retry_after, reset_after, changed, given = false, 0, 0, 0, false, 0
--[[twin]]
if changed then
  redis.call('SET', KEYS[1], changed, 'PX', string.format('%.0f', math.ceil(reset_after / 1000) + SLACK))
end
return struct.pack('<dBddd', now, allowed and 1 or 0, remaining, retry_after, reset_after)
