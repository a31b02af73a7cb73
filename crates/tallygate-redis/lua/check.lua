-- The common call, one check that is charged if it fits: reads the clock once and lets the twin decide. The twin is inlined,
-- because a server recreates every function of a script on every call.
-- KEYS[1]  the state
-- ARGV[1]  the cost and the numbers of the limit, as little-endian doubles
-- reply    allowed (1 byte), now, remaining, retry_after, reset_after: little-endian doubles, times in microseconds;
--          or what the twin returns for a state that it cannot read, or for a time that it was not sent the windows of
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local key, verb, packed, charged_at = KEYS[1], 'check', ARGV[1]
local allowed, remaining, retry_after, reset_after, changed, given, debt = false, 0, 0, 0, false, 0, 0
-- A state of which units are held or owed cannot be read here.
local head = nil
--[[twin]]
return struct.pack('<Bdddd', allowed and 1 or 0, now, remaining, retry_after, reset_after)
