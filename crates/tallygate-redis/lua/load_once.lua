-- Reads a packed state, once for all calls of the script.
local value = states[key]
if value == nil then
  value = redis.call('GET', key)
  states[key] = value
end
