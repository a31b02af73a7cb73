-- sliding_window: counts per sub-window, the oldest counted whole. Twin: tollgate/src/algorithm/sliding_window.rs
-- limit: cost, amount (units); window (microseconds); slots (sub-windows per window)
-- state: the window and slots it was written under, newest (sub-windows since the epoch), and for each sub-window that
--   saw a call, oldest first, its number modulo 256 and its units
-- Pure: numbers in, numbers out.

local HEAD, CELL = 18, 5

-- The sub-window in force at now, and the cells that still count: the one in force and as many before it as make a
-- window. cells holds pairs of age (sub-windows behind the one in force) and units, from position first on; spent is
-- how many cells no longer count. All made to fit the limit; the last value says that they had to be.
local function fit(value, now, amount, window, slots)
  local slot = window / slots
  local held = math.floor(now / slot)
  if not value then return held, {}, 0, 0, false end
  local version, old_window, old_slots, newest = struct.unpack('<BdBd', value)
  if version ~= VERSION then error(CORRUPT) end
  local fits = window == old_window and slots == old_slots and newest * slot <= now + window + slot
  local old_slot = old_window / old_slots
  local old_held = math.floor(now / old_slot)
  if old_held < newest then old_held = newest end
  local count = (#value - HEAD) / CELL
  local cells = { struct.unpack('<' .. string.rep('BI', count), value, HEAD + 1) }
  local spent, total = 0, 0
  for i = 1, 2 * count, 2 do
    local age = (newest - cells[i]) % 256 + old_held - newest
    cells[i] = age
    if age > old_slots then spent = spent + 1 else total = total + cells[i + 1] end
  end
  cells[2 * count + 1] = nil
  if fits then return old_held, cells, spent, total, false end
  if total > amount then total = amount end
  if total == 0 then return held, {}, 0, 0, true end
  return held, { 0, total }, 0, total, true
end

-- How long until what was used in the sub-window of that age stops counting.
local function forgotten_after(held, age, now, window, slots)
  return (held - age + slots + 1) * (window / slots) - now
end

local function reset_after(held, cells, spent, now, window, slots)
  for i = #cells - 1, 2 * spent + 1, -2 do
    if cells[i + 1] > 0 then return forgotten_after(held, cells[i], now, window, slots) end
  end
  return 0
end

local function encode(held, cells, spent, window, slots)
  local newest = #cells > 0 and held - cells[#cells - 1] or 0
  for i = 1, #cells, 2 do cells[i] = (held - cells[i]) % 256 end
  local format = '<BdBd' .. string.rep('BI', #cells / 2 - spent)
  return struct.pack(format, VERSION, window, slots, newest, unpack(cells, 2 * spent + 1))
end

twins.sw = function(packed, value, now, take)
  local cost, amount, window, slots = struct.unpack('<dddd', packed)
  local held, cells, spent, total, changed = fit(value, now, amount, window, slots)
  local free = amount - total
  if free < 0 then free = 0 end
  local allowed, retry_after = free >= cost, 0
  if not allowed then
    local needed = total + cost - amount
    local i = 2 * spent + 1
    while cells[i + 1] < needed do
      needed = needed - cells[i + 1]
      i = i + 2
    end
    retry_after = forgotten_after(held, cells[i], now, window, slots)
  elseif take then
    local last = #cells
    if last > 2 * spent and cells[last - 1] == 0 then
      cells[last] = cells[last] + cost
    else
      cells[last + 1], cells[last + 2] = 0, cost
    end
    free, changed = free - cost, true
  end
  local reset_after = reset_after(held, cells, spent, now, window, slots)
  return allowed, free, retry_after, reset_after, changed and encode(held, cells, spent, window, slots)
end

if refunds then
  refunds.sw = function(packed, value, now, charged_at)
    local units, amount, window, slots = struct.unpack('<dddd', packed)
    local held, cells, spent, _, changed = fit(value, now, amount, window, slots)
    local rest = units
    if math.floor(charged_at / (window / slots)) + slots < held then rest = 0 end
    local given = 0
    for i = 2 * spent + 1, #cells, 2 do
      local taken = math.min(rest - given, cells[i + 1])
      cells[i + 1] = cells[i + 1] - taken
      given = given + taken
    end
    local reset_after = reset_after(held, cells, spent, now, window, slots)
    return given, reset_after, (changed or given > 0) and encode(held, cells, 0, window, slots)
  end
end
