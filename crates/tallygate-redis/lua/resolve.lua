-- Settles, extends, renews, cancels or confirms a hold. Twin: Shards::resolve in tallygate/src/store/memory.rs
-- KEYS      the states of the hold, in order; the open holds of each; the record of the hold
-- ARGV[1]   settle, settle_part, cancel, extend, renew or confirm
-- ARGV[2]   the id of the hold (16 bytes); a number of this call, and by how much to extend (doubles, microseconds); the turn of the token,
--           and the next one (8 bytes each)
-- ARGV[3]   for each state the units used, a double, -1 for all that is left; after these 1 if the same number is meant for each
-- record    1 and the state (o, s or c); when the units were charged, the deadline, until when the record counts, the number of the last
--           call other than extend (doubles); how many parts. A part: the kind of its state, on_abandon (see holds.lua), overrun; units reserved, left, settled, refunded
--           and unpaid (doubles); the lengths of the numbers of its limit and of its key, and both. Then the turn of the
--           token (8 bytes, zeros before the first renewal), and the instant beyond which nothing extends it (a double)
-- reply     the state (o, s, c, x for expired or u for unknown); 1 if it did what it was asked to, 0 if it changed nothing, 2 if different
--           numbers were reserved, 3 and more for the part that refuses an overrun, 255 if the hold was renewed since; the deadline and now (doubles); for each part ten
--           doubles: capacity, units reserved, left, settled, refunded, unpaid; remaining, reset_after, held and debt of its state
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--[[common]]
local twins = {}
local states, ttls = {}, {}
local heads, later, looked, aware = {}, {}, {}, true
--[[twins]]

local sub, byte, find, pack = string.sub, string.byte, string.find, struct.pack

local function try(twin, ...)
  local done, fit, remaining, retry_after, reset_after, changed, given, debt = pcall(twin, ...)
  if done then return fit, remaining, retry_after, reset_after, changed, given, debt end
  if find(fit, 'READONLY') then error(fit, 0) end
  return '?' .. fit
end

--[[writes]]

--[[holds]]

local verb, count, record_key = ARGV[1], (#KEYS - 1) / 2, KEYS[#KEYS]
local id, attempt, ttl, turn, next_turn = struct.unpack('<c16ddc8c8', ARGV[2])
local extends = verb == 'extend' or verb == 'renew'

-- The record, if it is one of these states and still counts.
local function read_record()
  local text = redis.call('GET', record_key)
  if not text or #text < 35 or byte(text) ~= 1 then return nil end
  local _, state, charged_at, deadline, forget_at, last, parts, at = struct.unpack('<Bc1ddddB', text)
  if parts ~= count or now >= forget_at then return nil end
  local record = { state = state, charged_at = charged_at, deadline = deadline, last = last, turn = string.rep('\0', 8), ends_at = 2 ^ 53 }
  for i = 1, count do
    if #text < at + 46 then return nil end
    local part, numbers, key = {}, nil, nil
    part.kind, part.on_abandon, part.overrun, part.reserved, part.left, part.settled, part.refunded, part.unpaid, numbers, key, at =
      struct.unpack('<c2c1c1dddddBI2', text, at)
    part.numbers, part.key, part.opens = sub(text, at, at + numbers - 1), sub(text, at + numbers, at + numbers + key - 1), KEYS[count + i]
    part.packed, part.capacity = pack('<d', 0) .. part.numbers, struct.unpack('<d', part.numbers)
    at = at + numbers + key
    if part.key ~= KEYS[i] then return nil end
    -- The windows of a calendar are those that were sent with the reservation.
    if part.kind == 'cw' then
      local from, till = struct.unpack('<d', part.numbers, 25), struct.unpack('<d', part.numbers, #part.numbers - 7)
      if now < from or now >= till then return nil end
    end
    record[i] = part
  end
  if #text >= at + 15 then record.turn, record.ends_at = struct.unpack('<c8d', text, at) end
  return record
end

local function write_record(record)
  local forget_at = (record.state == 'o' and record.deadline or now) + RETENTION
  local parts = { pack('<Bc1ddddB', 1, record.state, record.charged_at, record.deadline, forget_at, record.last, count) }
  for i, part in ipairs(record) do
    parts[i + 1] = part.kind .. part.on_abandon .. part.overrun
      .. pack('<dddddBI2', part.reserved, part.left, part.settled, part.refunded, part.unpaid, #part.numbers, #part.key)
      .. part.numbers .. part.key
  end
  parts[count + 2] = record.turn .. pack('<d', record.ends_at)
  local lifetime = string.format('%.0f', math.ceil((forget_at - now) / 1000) + SLACK)
  table.insert(later, 1, { 'SET', record_key, table.concat(parts), 'PX', lifetime })
end

local function report(record, state, flag)
  local parts = { pack('<c1Bdd', state, flag, record.deadline, now) }
  for i, part in ipairs(record) do
    local left, settled, refunded = part.left, part.settled, part.refunded
    if state == 'x' then
      if part.on_abandon == 'c' then settled = settled + left else refunded = refunded + left end
      left = 0
    end
    local fits, remaining, debt, reset_after = look(part.kind, part.key, part.packed, now)
    parts[i + 1] = pack('<dddddddddd', part.capacity, part.reserved, left, settled, refunded, part.unpaid, remaining, reset_after,
      held(part.key, part.packed, remaining, debt, fits), owed(part.key, debt))
  end
  return table.concat(parts)
end

local function entry_of(part, deadline)
  local at = string.format('%.0f', deadline)
  for _, member in ipairs(redis.call('ZRANGE', part.opens, at, at, 'BYSCORE')) do
    if #member == 33 and sub(member, 1, 16) == id then return member end
  end
end

-- When the next hold of what is in flight ends, other than this one, which ends at `deadline` if it is still open.
local function due_without(part, deadline)
  local due = deadline
  local from = '(' .. string.format('%.0f', now)
  local entries = redis.call('ZRANGE', part.opens, from, '+inf', 'BYSCORE', 'LIMIT', '0', '2', 'WITHSCORES')
  for i = 1, #entries, 2 do
    local other = tonumber(entries[i + 1])
    if sub(entries[i], 1, 16) ~= id and (not due or other < due) then due = other end
  end
  return due
end

-- Charges what a hold did not cover, as far as its limit allows that. Returns how much.
local function charge_beyond(part, units)
  local _, remaining, debt = look(part.kind, part.key, part.packed, now)
  local room = remaining
  if part.overrun == 'd' then room = room + math.max(part.capacity - debt, 0) end
  units = math.min(units, room)
  if units == 0 then return 0 end
  before_charge(part.kind, part.key, part.packed, now)
  debt = select(7, twins[part.kind](part.key, pack('<d', units) .. part.numbers, now, 'charge'))
  if units > remaining then heads[part.key].debt = excess(part.kind, part.key, part.packed, debt) end
  return units
end

-- Resolves one part of an open hold.
local function resolve_part(record, part, used, deadline)
  local kind, key, packed, head = part.kind, part.key, part.packed, heads[part.key]
  local member = head and entry_of(part, record.deadline)
  if verb == 'confirm' then
    if part.on_abandon ~= 't' then return end
    part.on_abandon = 'c'
    if member then
      write_later('ZADD', part.opens, string.format('%.0f', record.deadline), sub(member, 1, 32) .. 'c')
      write_later('ZREM', part.opens, member)
    end
    return
  end
  if extends then
    if member then
      write_later('ZADD', part.opens, string.format('%.0f', deadline), member)
      if kind == 'cc' then
        head.due = due_without(part, deadline)
        lasts_until(key, now, deadline)
      end
      keep_until(part.opens, head, now, deadline)
      touch(kind, key, packed, now)
    end
    return
  end
  local ends, left = verb ~= 'settle_part', part.left
  if used < 0 then used = left end
  -- What is in flight is held until the hold ends, and then all of it comes back.
  if kind == 'cc' then used = 0 end
  local taken, beyond = math.min(used, left), math.max(used - left, 0)
  part.settled, part.left = part.settled + taken, ends and 0 or left - taken
  if not member then
    part.unpaid = part.unpaid + beyond
    return
  end
  if ends then
    head.count = head.count - 1
    write_later('ZREM', part.opens, member)
  elseif taken > 0 then
    local at = string.format('%.0f', record.deadline)
    write_later('ZADD', part.opens, at, id .. pack('<d', part.left) .. sub(member, 25))
    write_later('ZREM', part.opens, member)
  end
  if kind == 'cc' then head.due = due_without(part, not ends and record.deadline or nil) or head.due end
  local fits = look(kind, key, packed, now)
  release(kind, key, packed, now, record.charged_at, ends and left or taken)
  if not fits then
    part.unpaid = part.unpaid + beyond
  elseif beyond > 0 then
    local charged = charge_beyond(part, beyond)
    part.settled, part.unpaid = part.settled + charged, part.unpaid + beyond - charged
  elseif ends and taken < left then
    part.refunded = part.refunded + give_back(kind, key, packed, now, record.charged_at, left - taken)
  end
  local _, _, debt = look(kind, key, packed, now)
  keep(kind, key, packed, now, debt)
end

-- Whether something of it was in flight and has lost its place, because the state was reset.
local function is_gone(record)
  for _, part in ipairs(record) do
    if part.kind == 'cc' and part.reserved > 0 and not (heads[part.key] and entry_of(part, record.deadline)) then return true end
  end
  return false
end

local record = read_record()
if not record then return pack('<c1Bdd', 'u', 0, 0, now) end
for _, part in ipairs(record) do
  local unreadable = open(part.kind, part.key, part.opens, part.packed, now)
  if not unreadable then unreadable = select(5, look(part.kind, part.key, part.packed, now)) end
  if unreadable then return unreadable end
end
local state = record.state
if state == 'o' and now >= record.deadline then state = 'x' end
local flag, changes = 1, false
if record.last == attempt then
  flag = 1
elseif state ~= 'o' then
  flag = 0
elseif turn ~= record.turn and (verb ~= 'renew' or next_turn ~= record.turn) and verb ~= 'confirm' then
  flag = 255
elseif extends and is_gone(record) then
  state, flag = 'x', 0
else
  local used, same, reserved = {}, byte(ARGV[3], 8 * count + 1) == 49, nil
  for i, part in ipairs(record) do
    used[i] = struct.unpack('<d', ARGV[3], 8 * i - 7)
    if part.reserved > 0 and part.kind ~= 'cc' then
      if same and reserved and reserved ~= part.reserved then flag = 2 end
      reserved = part.reserved
    end
  end
  for i, part in ipairs(record) do
    if flag == 1 and part.reserved > 0 and part.kind ~= 'cc' and part.overrun == 'r' and used[i] > part.left then flag = 2 + i end
  end
  if flag == 1 then
    local deadline = record.deadline
    if extends then deadline = math.max(deadline, math.min(now + ttl, record.ends_at)) end
    if verb == 'renew' then record.turn = next_turn end
    for i, part in ipairs(record) do
      if part.reserved > 0 then resolve_part(record, part, used[i], deadline) end
    end
    record.deadline = deadline
    -- To extend or confirm again does no harm. If it counted, a settlement that is repeated after it would not be known.
    if not extends and verb ~= 'confirm' then record.last = attempt end
    if verb == 'settle' then record.state = 's' elseif verb == 'cancel' then record.state = 'c' end
    state, changes = record.state, true
  end
end
if changes then write_record(record) end
local reply = report(record, state, flag)
save_all()
return reply
