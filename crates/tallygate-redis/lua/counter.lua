-- A counter: a number stored as text, so that whole numbers stay exact beyond the range of a double.
-- KEYS[1]  the counter
-- ARGV[1]  add, add_float, get or delete
-- ARGV[2]  what to add
-- ARGV[3]  the TTL in milliseconds if this call creates it, or an empty string
-- reply    { what happened: ok, overflow, not_an_integer or not_a_number; the counter's text }
-- Unless the reply is ok, nothing has changed.

local verb, delta, ttl = ARGV[1], ARGV[2], ARGV[3]

if verb == 'delete' then
  -- Whatever it holds: a counter that cannot be read can still be deleted.
  local was = redis.pcall('GET', KEYS[1])
  redis.call('UNLINK', KEYS[1])
  return { 'ok', type(was) == 'string' and was or '0' }
end

local value = redis.call('GET', KEYS[1])

local function create(text)
  if ttl == '' then
    redis.call('SET', KEYS[1], text)
  else
    redis.call('SET', KEYS[1], text, 'PX', ttl)
  end
  return { 'ok', text }
end

if verb == 'get' then return { 'ok', value or '0' } end

if verb == 'add' then
  if not value then return create(delta) end
  local sum = redis.pcall('INCRBY', KEYS[1], delta)
  if type(sum) == 'table' then
    if string.find(sum.err, 'overflow') then return { 'overflow', value } end
    if string.find(sum.err, 'not an integer') then return { 'not_an_integer', value } end
    return sum
  end
  -- The reply is a double; the stored text is exact.
  return { 'ok', redis.call('GET', KEYS[1]) }
end

-- Doubles, as in the memory store: INCRBYFLOAT uses a wider type and would give other results.
local before = 0
if value then
  -- Decimal numbers only: tonumber accepts more.
  before = string.find(value, '^[-+]?%d*%.?%d+[eE]?[-+]?%d*$') and tonumber(value)
  if not before or before == math.huge or before == -math.huge then return { 'not_a_number', value } end
end
-- Both are finite, so the sum is a number, and from zero it is finite.
local sum = before + tonumber(delta)
if sum == math.huge or sum == -math.huge then return { 'overflow', value } end
local text = string.format('%.17g', sum)
if not value then return create(text) end
redis.call('SET', KEYS[1], text, 'KEEPTTL')
return { 'ok', text }
