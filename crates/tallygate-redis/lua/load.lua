-- Reads a packed state.
local value = redis.call('GET', key)
