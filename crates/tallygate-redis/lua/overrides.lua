-- The overrides of live limits: one text, and its revision beside it, so that to look whether anything has changed is cheap.
-- KEYS[1]  the revision, in digits
-- KEYS[2]  the revision (a little-endian double), and the set: see tallygate/src/live/record.rs. It is what counts
-- ARGV[1]  read or replace
-- ARGV[2]  for how long both are kept, in milliseconds. What is read in full is kept as long again
-- ARGV[3]  read: the revision that the reader knows, or -. replace: that of the set that is replaced
-- ARGV[4]  replace: until when, in microseconds
-- ARGV[5]  replace: the set
-- reply    read: now and the revision (doubles), then = if the reader knows it, or : and the set.
--          replace: the new revision (a double), 0 if there is another one than expected, or if it is too late
-- Uses no command that the other scripts do not use. Twin: the embedded store, tallygate/src/store/memory.rs.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local verb, kept, known = ARGV[1], ARGV[2], ARGV[3]
local function written(number)
  return string.format('%.0f', number)
end

if verb == 'read' and redis.call('GET', KEYS[1]) == known then
  return struct.pack('<dd', now, tonumber(known)) .. '='
end
local value = redis.call('GET', KEYS[2])
local revision = 0
if value and #value >= 8 then revision = struct.unpack('<d', value) end

if verb == 'read' then
  if value then
    redis.call('SET', KEYS[1], written(revision), 'PX', kept)
    redis.call('PEXPIRE', KEYS[2], kept)
  end
  if written(revision) == known then return struct.pack('<dd', now, revision) .. '=' end
  return struct.pack('<dd', now, revision) .. ':' .. string.sub(value or '', 9)
end

if written(revision) ~= known or now > tonumber(ARGV[4]) then return struct.pack('<d', 0) end
-- The time, so that no revision comes again, even if the keys were lost in between.
local new = math.max(now, revision + 1)
redis.call('SET', KEYS[2], struct.pack('<d', new) .. ARGV[5], 'PX', kept)
redis.call('SET', KEYS[1], written(new), 'PX', kept)
return struct.pack('<d', new)
