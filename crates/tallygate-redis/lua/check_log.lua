-- One check of a sliding_log, which reads and writes its sorted set itself. Keys, arguments and reply as in check.lua.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local key, verb, packed, charged_at = KEYS[1], 'take', ARGV[1], 0
local allowed, remaining, retry_after, reset_after, changed, given = false, 0, 0, 0, false, 0
--[[twin]]
return struct.pack('<dBddd', now, allowed and 1 or 0, remaining, retry_after, reset_after)
