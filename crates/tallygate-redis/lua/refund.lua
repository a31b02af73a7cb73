-- Gives units back, or forgets a state.
-- KEYS[1]  the state
-- ARGV[1]  refund or reset
-- ARGV[2]  the two letters of the twin
-- ARGV[3]  the units and the numbers of the limit
-- ARGV[4]  the microsecond of the charge, or an empty string for now
-- reply    refund: the units given back; reset: 1 if there was a state, 0 if not; a little-endian double
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local key, kind = KEYS[1], ARGV[2]
if ARGV[1] == 'reset' then return struct.pack('<d', redis.call('UNLINK', key)) end

local twins = {}
--[[twins]]
local value = kind ~= 'sl' and redis.call('GET', key)
if kind ~= 'sl' and not value then return struct.pack('<d', 0) end
local charged_at = tonumber(ARGV[4]) or now
local _, _, _, reset_after, changed, given = twins[kind](key, value, ARGV[3], now, 'refund', charged_at)
if changed and kind ~= 'sl' then
  redis.call('SET', key, changed, 'PX', string.format('%.0f', math.ceil(reset_after / 1000) + SLACK))
end
return struct.pack('<d', given)
