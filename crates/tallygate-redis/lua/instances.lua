-- The processes that share a store: a sorted set of their ids, by the instant at which each was last seen.
-- KEYS[1]  the set
-- ARGV[1]  the id of this process
-- ARGV[2]  for how long a process counts after it was last seen, in milliseconds; 0 removes this one
-- reply    the number of processes
-- Uses no command that the other scripts do not use.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local id, ttl = ARGV[1], tonumber(ARGV[2])

if ttl == 0 then
  redis.call('ZREM', KEYS[1], id)
  return redis.call('ZCARD', KEYS[1])
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), id)
-- The set expires with its last process.
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local gone = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('(%.0f', now - ttl))
if gone > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], '0', string.format('%.0f', gone - 1)) end
return redis.call('ZCARD', KEYS[1])
