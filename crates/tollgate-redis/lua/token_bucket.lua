-- token_bucket: refills evenly, holds at most the burst. Twin: tollgate/src/algorithm/token_bucket.rs
-- limit: cost, capacity (units); tick (microseconds); refill (parts per tick), unit (parts per unit); full (microseconds)
-- state: at (microseconds), used (parts), and the tick, refill and unit it was written under
-- Pure: numbers in, numbers out.

-- The state at now, made to fit the limit. The third value says that it had to be.
local function fit(value, now, capacity, tick, refill, unit, full)
  if not value then return now - now % tick, 0, false end
  local version, at, used, old_tick, old_refill, old_unit = struct.unpack('<Bddddd', value)
  if version ~= VERSION then error(CORRUPT) end
  -- The last tick at or before now, unless the state is already later.
  local held = now - now % old_tick
  if held < at then held = at end
  used = used - (held - at) / old_tick * old_refill
  if used < 0 then used = 0 end
  if tick == old_tick and refill == old_refill and unit == old_unit
    and at <= now + full and used <= capacity * unit then
    return held, used, false
  end
  local units = math.ceil(used / old_unit)
  return now - now % tick, math.min(units, capacity) * unit, true
end

local function reset_after(at, used, now, tick, refill)
  if used == 0 then return 0 end
  return at + math.ceil(used / refill) * tick - now
end

twins.tb = function(packed, value, now, take)
  local cost, capacity, tick, refill, unit, full = struct.unpack('<dddddd', packed)
  local at, used, changed = fit(value, now, capacity, tick, refill, unit, full)
  local free = math.floor((capacity * unit - used) / unit)
  local allowed, retry_after = free >= cost, 0
  if not allowed then
    local missing = used + cost * unit - capacity * unit
    retry_after = at + math.ceil(missing / refill) * tick - now
  elseif take then
    used, free, changed = used + cost * unit, free - cost, true
  end
  return allowed, free, retry_after, reset_after(at, used, now, tick, refill),
    changed and struct.pack('<Bddddd', VERSION, at, used, tick, refill, unit)
end

if refunds then
  refunds.tb = function(packed, value, now, charged_at)
    local units, capacity, tick, refill, unit, full = struct.unpack('<dddddd', packed)
    local at, used, changed = fit(value, now, capacity, tick, refill, unit, full)
    local given = math.min(units, math.ceil(used / unit))
    used = math.max(0, used - given * unit)
    return given, reset_after(at, used, now, tick, refill),
      (changed or given > 0) and struct.pack('<Bddddd', VERSION, at, used, tick, refill, unit)
  end
end
