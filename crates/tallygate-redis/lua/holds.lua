-- What is held of the states of a call. Twin: tallygate/src/store/memory/shard/holds.rs, with the same names in the same order. The
-- contract is section 10 of docs/algorithms.md.
--   A state of which units are held or owed has a head: held, count, due, last and debt, doubles. A packed state begins with 2 then, and
--   ends with its head. A log has one more member, its head and a 2, with the score infinity.
--   Beside it stands a sorted set of the open holds by deadline. A member is the id of the hold (16 bytes), the units left and when they
--   were charged (doubles), and what becomes of them if the hold is abandoned: c for charge, r for refund, t for refund until the hold is
--   confirmed and charge from then on: the other slots of its call have not answered yet.
-- What is written to these sets is kept for the end of the script, after the states: the first write of a script is one that a server
-- without memory refuses.
local function take_head(text)
  local held, count, due, last, debt = struct.unpack('<ddddd', text)
  local head = { held = held, count = count, due = due, last = last, debt = debt }
  for _, number in pairs(head) do
    if not (number >= 0 and number < 2 ^ 53 and number % 1 == 0) then return nil end
  end
  return head
end

-- Reads a state and its head, once for all calls of the script. What cannot be read is left to the twin, which says so.
local function load(key, kind)
  if heads[key] ~= nil then return heads[key] end
  local head = false
  if kind == 'sl' then
    local member = redis.pcall('ZRANGE', key, '-1', '-1')[1]
    if member and #member == 41 then
      head = take_head(member)
      if head then head.member = member end
    end
  else
    local value = states[key]
    if value == nil then value = redis.pcall('GET', key) end
    if type(value) == 'table' then value = nil end
    if value and #value > 41 and byte(value) == 2 then
      head = take_head(sub(value, -40))
      if head then value = '\1' .. sub(value, 2, -41) end
    end
    states[key] = value
  end
  heads[key] = head or false
  return heads[key]
end

-- A state of what is in flight that was lost, as by an eviction, is made again from its open holds: their units are still in use.
local function restore(key, opens, now)
  local entries = redis.call('ZRANGE', opens, '0', '-1', 'WITHSCORES')
  if #entries == 0 then return end
  local head, past = { held = 0, count = 0, due = 0, last = 0, debt = 0 }, 0
  for i = 1, #entries, 2 do
    local deadline = tonumber(entries[i + 1])
    if deadline <= now then
      past = past + 1
    elseif #entries[i] == 33 then
      if head.count == 0 then head.due = deadline end
      head.count, head.held, head.last = head.count + 1, head.held + struct.unpack('<d', entries[i], 17), deadline
    end
  end
  if past > 0 then later[#later + 1] = { 'ZREMRANGEBYRANK', opens, '0', past - 1 } end
  if head.count == 0 then return end
  states[key], heads[key] = pack('<Bdd', 1, head.last, head.held), head
  ttls[key] = math.ceil((head.last - now) / 1000) + SLACK
end

-- Looks at a state: whether it was written with the numbers of the limit, what is left, the debt, after which time it is unused, and a
-- text if it cannot be read.
local function look(kind, key, packed, at)
  -- Asked again and again about the present, while nothing is written.
  local known = at == now and looked[key]
  if known and known[5] == packed then return known[1], known[2], known[3], known[4] end
  local readable, remaining, _, reset_after, changed, _, debt = try(twins[kind], key, pack('<d', 0) .. sub(packed, 9), at, 'peek')
  if type(readable) == 'string' then return false, 0, 0, 0, readable end
  if at == now then looked[key] = { not changed, remaining, debt, reset_after, packed } end
  return not changed, remaining, debt, reset_after
end

-- The head of a state is written at the end of the script, and with it the state.
local function touch(kind, key, packed, now)
  if ttls[key] then return end
  local _, _, _, reset_after = look(kind, key, packed, now)
  -- A log lives for two windows after its last write.
  if kind == 'sl' then reset_after = 2 * struct.unpack('<d', packed, 17) end
  ttls[key] = math.ceil(reset_after / 1000) + SLACK
end

-- How far any count of a state that fits is above the capacity: the debt, or more where a count weighs less than it is.
local function excess(kind, key, packed, debt)
  if kind ~= 'sc' then return debt end
  local previous, current = struct.unpack('<dd', states[key], 10)
  return math.max(debt, math.max(previous, current) - struct.unpack('<d', packed, 9))
end

-- After a state or its head was changed.
local function keep(kind, key, packed, now, debt)
  local head = heads[key]
  if not head then return end
  -- One that does not fit is seen as converted: nothing in it weighs less than it is.
  if head.debt > debt and look(kind, key, packed, now) then debt = excess(kind, key, packed, debt) end
  head.debt = math.min(head.debt, debt)
  if head.count == 0 then head.held, head.due, head.last = 0, 0, 0 end
  touch(kind, key, packed, now)
end

-- Units of a hold are no longer held. Those of a window that has ended were not counted any more.
local function release(kind, key, packed, now, charged_at, units)
  local head = heads[key]
  if not head then return end
  if kind == 'fw' or kind == 'cw' then
    local fits, _, _, reset_after = look(kind, key, packed, now)
    if not fits or reset_after == 0 or charged_at < struct.unpack('<d', states[key], 2) then return end
  end
  head.held = math.max(head.held - units, 0)
end

local function give_back(kind, key, packed, now, charged_at, units)
  if units == 0 then return 0 end
  local failed, _, _, _, _, given = try(twins[kind], key, pack('<d', units) .. sub(packed, 9), now, 'refund', charged_at)
  return type(failed) == 'string' and 0 or given
end

-- The open holds are kept until the last of them can give nothing back, and up to an hour longer, so that the state is seldom written
-- for it. The TTL is always set: the set may have been evicted, and be a new one.
local function keep_until(opens, head, now, at)
  if at > head.last then head.last = at + math.min(at - now, 3600000000) end
  write_later('PEXPIRE', opens, string.format('%.0f', math.ceil((head.last - now) / 1000) + SLACK))
end

-- What was held stays used, and can no longer be given back.
local function close(key, opens)
  local head = heads[key]
  head.held, head.count, head.due, head.last = 0, 0, 0, 0
  write_later('UNLINK', opens)
end

-- If the limit has other numbers than the state, its holds are closed.
local function close_unless(fits, kind, key, opens, packed)
  if fits or not heads[key] then return end
  close(key, opens)
  touch(kind, key, packed, now)
end

-- Prepares a state for a decision: resolves the holds whose deadline has passed, each as of its deadline. Nothing else is done here: a
-- check finds out by itself whether the limit has other numbers than the state.
local function open(kind, key, opens, packed, now)
  local head = load(key, kind)
  if kind == 'cc' and not head and not states[key] and opens then
    restore(key, opens, now)
    return
  end
  if not head or head.count == 0 or head.due > now then return end
  local fits, _, _, _, unreadable = look(kind, key, packed, now)
  if unreadable or not fits then return unreadable end
  local gone, ends = 0, false
  repeat
    local entries = redis.call('ZRANGE', opens, gone, gone + 99, 'WITHSCORES')
    for i = 1, #entries, 2 do
      local deadline = tonumber(entries[i + 1])
      head.due = deadline
      if deadline > now then
        ends = true
        break
      end
      gone, head.count = gone + 1, math.max(head.count - 1, 0)
      if #entries[i] == 33 then
        local left, charged_at, on_abandon = struct.unpack('<ddc1', entries[i], 17)
        release(kind, key, packed, deadline, charged_at, left)
        if on_abandon ~= 'c' then give_back(kind, key, packed, deadline, charged_at, left) end
      end
    end
  until ends or #entries < 200
  -- Lost entries cannot be resolved any more.
  if not ends then head.count = 0 end
  if gone > 0 then write_later('ZREMRANGEBYRANK', opens, '0', gone - 1) end
  local _, _, debt = look(kind, key, packed, now)
  keep(kind, key, packed, now, debt)
end

-- Before units are charged to a state: what was held of a window that has ended no longer counts.
local function before_charge(kind, key, packed, now)
  local head = heads[key]
  if not head or kind ~= 'fw' and kind ~= 'cw' then return end
  local _, remaining = look(kind, key, packed, now)
  if remaining == struct.unpack('<d', packed, 9) then head.held = 0 end
end

-- What is in flight counts at least until this deadline. Returns after which time the state is unused.
local function lasts_until(key, now, deadline, reset_after)
  local value = states[key]
  if not value then return reset_after end
  local ends, used = struct.unpack('<dd', value, 2)
  if deadline > ends then
    states[key], looked[key], ends = pack('<Bdd', 1, deadline, used), nil, deadline
  end
  return used > 0 and ends > now and ends - now or 0
end

-- Holds units that were just charged. Takes and returns after which time the state is unused.
local function hold(kind, key, opens, packed, now, reset_after, units, deadline, id, on_abandon)
  local head = heads[key]
  if not head then
    head = { held = 0, count = 0, due = 0, last = 0, debt = 0 }
    heads[key] = head
  end
  if head.count == 0 or deadline < head.due then head.due = deadline end
  head.count, head.held = head.count + 1, head.held + units
  if kind == 'cc' then reset_after = lasts_until(key, now, deadline, reset_after) end
  write_later('ZADD', opens, string.format('%.0f', deadline), id .. pack('<dd', units, now) .. on_abandon)
  keep_until(opens, head, now, math.max(deadline, now + reset_after))
  touch(kind, key, packed, now)
  return reset_after
end

-- How much of what is used is held.
local function held(key, packed, remaining, debt, fits)
  local head = heads[key]
  if not head or not fits then return 0 end
  local capacity = struct.unpack('<d', packed, 9)
  return math.min(head.held, capacity - remaining + debt, capacity)
end

-- The debt of a marked state. Another one owes nothing, even if more was used than its limit now allows.
local function owed(key, debt)
  local head = heads[key]
  if head and (head.count > 0 or head.debt > 0) then return debt end
  return 0
end

-- Writes a state that has a head, or had one.
save_head = function(key, ttl)
  local head, value = heads[key], states[key]
  local marks = head.count > 0 or head.debt > 0
  if head.count > 0 then ttl = math.max(ttl, math.ceil((head.last - now) / 1000) + SLACK) end
  ttl = string.format('%.0f', ttl)
  if value then
    if marks then value = '\2' .. sub(value, 2) .. pack('<ddddd', head.held, head.count, head.due, head.last, head.debt) end
    redis.call('SET', key, value, 'PX', ttl)
  else
    local member = marks and pack('<dddddB', head.held, head.count, head.due, head.last, head.debt, 2)
    if marks then
      redis.call('ZADD', key, '+inf', member)
      redis.call('PEXPIRE', key, ttl)
    end
    if head.member and head.member ~= member then redis.call('ZREM', key, head.member) end
  end
end

-- The record of a hold: see resolve.lua.
local function record(terms, specs, first, at, count, charged)
  local ttl, life = struct.unpack('<dd', terms, 20)
  local parts = { pack('<Bc1ddddB', 1, 'o', now, now + ttl, now + ttl + RETENTION, 0, count) }
  for i = 1, count do
    local key, numbers, grants = KEYS[first + i - 1], sub(ARGV[at + i], 9), 18 + 18 * i
    parts[i + 1] = sub(specs, 13 * i - 12, 13 * i - 11) .. sub(terms, grants, grants + 1)
      .. pack('<dddddBI2', charged[i], charged[i], 0, 0, 0, #numbers, #key) .. numbers .. key
  end
  -- It was not renewed.
  parts[count + 2] = string.rep('\0', 8) .. pack('<d', now + life)
  write_later('SET', KEYS[first + 2 * count], table.concat(parts), 'PX', string.format('%.0f', math.ceil((ttl + RETENTION) / 1000) + SLACK))
end
