-- The sliding log that everybody copies: one member of a sorted set for each admitted call.
-- KEYS[1] the log; ARGV limit, window in milliseconds; reply {allowed, remaining}
local limit = tonumber(ARGV[1])
local window = tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window * 1000)
local count = redis.call('ZCARD', KEYS[1])
if count >= limit then
  return {0, 0}
end
redis.call('ZADD', KEYS[1], now, time[1] .. ':' .. time[2] .. ':' .. count)
redis.call('PEXPIRE', KEYS[1], window)
return {1, limit - count - 1}
