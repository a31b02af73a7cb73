-- sliding_counter: two windows, the previous one weighted by what is left of it.
-- Twin: tollgate/src/algorithm/sliding_counter.rs
-- limit: cost, amount (units); window, tick (microseconds)
-- state: start (microseconds), previous, current (units), and the window and tick it was written under
-- Pure: numbers in, numbers out.

-- The two windows as they stand at now, how many ticks of the previous one still count, and the windows made to fit the
-- limit. The fifth value says that they had to be.
local function fit(value, now, amount, window, tick)
  local ticks = window / tick
  local aligned = now - now % window
  local weight = ticks - math.floor((now - aligned) / tick)
  if not value then return aligned, 0, 0, weight, false end
  local version, start, previous, current, old_window, old_tick = struct.unpack('<Bddddd', value)
  if version ~= VERSION then error(CORRUPT) end
  local fits = window == old_window and tick == old_tick and start <= now + 2 * window
    and previous <= amount and current <= amount
  local held = now
  if held < start then held = start end
  local old_ticks = old_window / old_tick
  local latest = held - held % old_window
  if latest == start + old_window then
    previous, current = current, 0
  elseif latest ~= start then
    previous, current = 0, 0
  end
  local old_weight = old_ticks - math.floor((held - latest) / old_tick)
  if fits then return latest, previous, current, old_weight, false end
  -- What counts as used, in ticks of the window times units.
  local load = previous * old_weight + current * old_ticks
  return aligned, 0, math.min(math.ceil(load / old_ticks), amount), weight, true
end

local function reset_after(start, previous, current, now, window)
  if current > 0 then return start + 2 * window - now end
  if previous > 0 then return start + window - now end
  return 0
end

twins.sc = function(packed, value, now, take)
  local cost, amount, window, tick = struct.unpack('<dddd', packed)
  local start, previous, current, weight, changed = fit(value, now, amount, window, tick)
  local ticks = window / tick
  local left = amount * ticks - (previous * weight + current * ticks)
  if left < 0 then left = 0 end
  local free = math.floor(left / ticks)
  local allowed, retry_after = free >= cost, 0
  if not allowed then
    -- The call fits once the weight of the older window has sunk to room / older.
    local older, room, from = previous, amount - current - cost, start
    if room < 0 then
      older, room, from = current, amount - cost, start + window
    end
    retry_after = from + (ticks - math.floor(room * ticks / older)) * tick - now
  elseif take then
    current, free, changed = current + cost, free - cost, true
  end
  return allowed, free, retry_after, reset_after(start, previous, current, now, window),
    changed and struct.pack('<Bddddd', VERSION, start, previous, current, window, tick)
end

if refunds then
  refunds.sc = function(packed, value, now, charged_at)
    local units, amount, window, tick = struct.unpack('<dddd', packed)
    local start, previous, current, _, changed = fit(value, now, amount, window, tick)
    local given = 0
    if charged_at >= start then
      given = math.min(units, current)
      current = current - given
    end
    if charged_at + window >= start then
      local rest = math.min(units - given, previous)
      previous = previous - rest
      given = given + rest
    end
    return given, reset_after(start, previous, current, now, window),
      (changed or given > 0) and struct.pack('<Bddddd', VERSION, start, previous, current, window, tick)
  end
end
