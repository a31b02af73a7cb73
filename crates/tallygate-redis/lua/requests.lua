-- The answers to calls with an id, for as long as they are remembered. Twin: tallygate/src/store/memory/shard/requests.rs. The contract is
-- "Calls with an id" in docs/algorithms.md.
-- value  1; until when it counts (a double, microseconds); the fingerprint of the call (16 bytes); h or - as in call.lua; the id of its
--        hold (16 bytes, zeros if it has none); for each check the capacity of its limit (a double); the reply
-- The request of a call that has an id (its fingerprint, and for how long its answer is remembered), and the other terms.
local function take_request(terms)
  return sub(terms, -24), '0' .. sub(terms, 2, -25)
end

-- Reads what is remembered, once for all calls of the script; or returns an error, as a twin does.
local function read_answer(key)
  if remembered[key] == nil then
    local done, value = pcall(redis.call, 'GET', key)
    if not done then return nil, '?' .. value end
    remembered[key] = value
  end
  return remembered[key]
end

-- The reply to a call that was answered before, or whose id belongs to another call.
local function recall(key, request)
  local value, unread = read_answer(key)
  if not value then return unread end
  -- A format of a future version is reported as one; 2 means something else in a reply.
  if #value < 51 or byte(value) ~= 1 then return '!' .. (byte(value) ~= 2 and sub(value, 1, 1) or '\0') end
  if now >= struct.unpack('<d', value, 2) then return nil end
  if sub(value, 10, 25) ~= sub(request, 1, 16) then return pack('<Bd', 3, now) end
  return '\2' .. sub(value, 26)
end

-- Written at the end of the script, after the states.
local function remember(key, request, id, at, count, reply)
  local kept = struct.unpack('<d', request, 17)
  local parts = { pack('<Bd', 1, now + kept) .. sub(request, 1, 16) .. (aware and 'h' or '-') .. (id or string.rep('\0', 16)) }
  for i = 1, count do parts[i + 1] = sub(ARGV[at + i], 9, 16) end
  remembered[key] = table.concat(parts) .. reply
  write_later('SET', key, remembered[key], 'PX', string.format('%.0f', math.ceil(kept / 1000) + SLACK))
end

-- Forgets the answer to a call that is given back.
local function forget(key, request)
  local value = read_answer(key)
  if value and sub(value, 10, 25) == sub(request, 1, 16) then
    remembered[key] = false
    write_later('UNLINK', key)
  end
end
