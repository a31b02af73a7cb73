-- The token bucket that everybody copies: tokens and the time of the last refill as two fields of a hash.
-- KEYS[1] the bucket; ARGV capacity, tokens per second, cost; reply {allowed, tokens left}
local capacity = tonumber(ARGV[1])
local rate = tonumber(ARGV[2])
local cost = tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'refilled_at')
local tokens = tonumber(bucket[1]) or capacity
local refilled_at = tonumber(bucket[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - refilled_at) * rate)

local allowed = 0
if tokens >= cost then
  tokens = tokens - cost
  allowed = 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'refilled_at', now)
redis.call('EXPIRE', KEYS[1], math.ceil(capacity / rate) * 2)
return {allowed, math.floor(tokens)}
