-- Tries every command that the other scripts use, without leaving anything behind.
-- KEYS[1]  an unused key
-- reply    the names of the commands that the user may not run

local key = KEYS[1]
local refused = {}

local function try(...)
  local reply = redis.pcall(...)
  local text = type(reply) == 'table' and reply.err or ''
  if string.find(text, "can't run this command") or string.find(text, 'permission') then
    refused[#refused + 1] = string.lower((...))
  end
end

-- Permissions are checked before arguments. A key is no number and no option, so nothing is written.
try('TIME')
try('GET', key)
try('SET', key, key, key)
try('INCRBY', key, key)
try('UNLINK', key)
try('ZADD', key, key, key)
try('ZRANGE', key, key, key)
try('ZCARD', key)
try('ZCOUNT', key, key, key)
try('ZREM', key, key)
try('ZREMRANGEBYRANK', key, key, key)
try('PEXPIRE', key, key)
return refused
