-- The common end of a hold: one that is open and has one part is settled or cancelled, with no more units than it holds, no other hold
-- is due, nothing is owed, and the state has the numbers of the limit. It means what the rest of resolve.lua means, which the server then does
-- not come to: so its functions are not created. Whatever is not so, and what the server refuses, is left to the rest: nothing was written
-- until then.
repeat
  local verb, key, opens, record_key = ARGV[1], KEYS[1], KEYS[2], KEYS[3]
  if #KEYS ~= 3 or verb ~= 'settle' and verb ~= 'cancel' then break end
  local text, state = redis.pcall('GET', record_key), redis.pcall('GET', key)
  if type(text) ~= 'string' or #text < 81 or string.byte(text) ~= 1 then break end
  if type(state) ~= 'string' or #state <= 41 or string.byte(state) ~= 2 then break end
  local id, attempt = struct.unpack('<c16d', ARGV[2])
  local used = struct.unpack('<d', ARGV[3])
  local _, stands, charged_at, deadline, _, before, parts, kind, grants, reserved, left, settled, refunded, unpaid, numbers, name, at =
    struct.unpack('<Bc1ddddBc2c2dddddBI2', text)
  numbers, name = string.sub(text, at, at + numbers - 1), string.sub(text, at + numbers, at + numbers + name - 1)
  -- A hold that was renewed has another token.
  local turn = string.sub(text, at + #numbers + #name, at + #numbers + #name + 7)
  if turn ~= string.sub(ARGV[2], 33, 40) then break end
  if used < 0 then used = left end
  if stands ~= 'o' or now >= deadline or before == attempt or parts ~= 1 or kind ~= KIND or reserved == 0 or used > left or name ~= key then
    break
  end
  -- The windows of a calendar are those that were sent with the reservation.
  if kind == 'cw' and (now < struct.unpack('<d', numbers, 25) or now >= struct.unpack('<d', numbers, #numbers - 7)) then break end
  local held, count, due, last, owed = struct.unpack('<ddddd', state, #state - 39)
  if not (held >= 0 and held < 2 ^ 53 and count >= 1 and count < 2 ^ 53 and due > now and due < 2 ^ 53 and last >= 0 and last < 2 ^ 53
    and owed == 0 and held % 1 == 0 and count % 1 == 0 and due % 1 == 0 and last % 1 == 0) then
    break
  end
  state = '\1' .. string.sub(state, 2, -41)
  local function twin(packed, verb)
    local allowed, remaining, retry_after, reset_after, changed, given, debt = false, 0, 0, 0, false, 0, 0
    local head, converted = nil, false
--[[twin]]
    return allowed, remaining, reset_after, converted, given, debt
  end
  local looks = struct.pack('<d', 0) .. numbers
  local fit, remaining, reset_after, converted, given, debt = twin(looks, 'peek')
  if type(fit) == 'string' or converted or debt > 0 then break end
  -- The units of a window that has ended were not held any more.
  if kind ~= 'fw' and kind ~= 'cw' or reset_after > 0 and charged_at >= struct.unpack('<d', state, 2) then held = math.max(held - left, 0) end
  if used < left then
    _, _, _, _, given = twin(struct.pack('<d', left - used) .. numbers, 'refund')
    _, remaining, reset_after = twin(looks, 'peek')
  end
  -- The first write: it is refused by a server that takes none, and says whether there is such a hold.
  local gone = redis.pcall('ZREM', opens, struct.pack('<c16ddc1', id, left, charged_at, grants))
  if gone ~= 1 then break end
  count = count - 1
  local lifetime = reset_after
  if count > 0 then
    lifetime, state = math.max(reset_after, last - now), '\2' .. string.sub(state, 2) .. struct.pack('<ddddd', held, count, due, last, 0)
  else
    held = 0
  end
  redis.call('SET', key, state, 'PX', math.ceil(lifetime / 1000) + SLACK)
  stands, settled, refunded = verb == 'settle' and 's' or 'c', settled + used, refunded + given
  redis.call('SET', record_key, struct.pack('<Bc1ddddBc2c2dddddBI2', 1, stands, charged_at, deadline, now + RETENTION, attempt, 1, kind, grants,
    reserved, 0, settled, refunded, unpaid, #numbers, #key) .. numbers .. key, 'PX', math.ceil(RETENTION / 1000) + SLACK)
  local capacity = struct.unpack('<d', numbers)
  return struct.pack('<c1Bdddddddddddd', stands, 1, deadline, now, capacity, reserved, 0, settled, refunded, unpaid, remaining, reset_after,
    math.min(held, capacity - remaining), 0)
until true
