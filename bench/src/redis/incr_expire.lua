-- The fixed window that everybody copies: count, and start the clock at the first call.
-- KEYS[1] the counter; ARGV limit, window in seconds; reply {allowed, remaining}
local limit = tonumber(ARGV[1])
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
if count > limit then
  return {0, 0}
end
return {1, limit - count}
