-- Tries every command that the other scripts use, without leaving anything behind.
-- KEYS[1]  an unused key
-- reply    the names of the commands that the user may not run

local key = KEYS[1]
local refused = {}

local function try(...)
  local reply = redis.pcall(...)
  local text = type(reply) == 'table' and reply.err or ''
  for _, sign in ipairs({ 'NOPERM', "can't run this command", 'permission' }) do
    if string.find(text, sign, 1, true) then
      refused[#refused + 1] = string.lower((...))
      return
    end
  end
end

try('TIME')
try('GET', key)
try('SET', key, '0', 'XX', 'PX', '1000')
try('INCRBY', key, 'no number')
try('UNLINK', key)
try('ZADD', key, 'XX', '1', 'member')
try('ZRANGE', key, '0', '0')
try('ZCARD', key)
try('ZCOUNT', key, '0', '0')
try('ZREM', key, 'member')
try('ZREMRANGEBYRANK', key, '0', '0')
try('PEXPIRE', key, '1000')
return refused
