-- fixed_window: counts per window, aligned to the epoch or started by the first call.
-- Twin: tollgate/src/algorithm/fixed_window.rs
-- limit: cost, amount (units); window (microseconds); aligned (1 or 0)
-- state: start (microseconds), used (units), and the window it was written under
-- Pure: numbers in, numbers out.

local function window_of(at, window, aligned)
  if aligned == 1 then return at - at % window end
  return at
end

-- The window in force at now and what was used in it, made to fit the limit. The third value says that it had to be.
local function fit(value, now, amount, window, aligned)
  if not value then return window_of(now, window, aligned), 0, false end
  local version, start, used, old_window = struct.unpack('<Bddd', value)
  if version ~= VERSION then error(CORRUPT) end
  local held = now
  if held < start then held = start end
  -- A window whose units were all given back has not begun: it could not be told from one that was forgotten.
  local over = used == 0 or held - start >= old_window
  if window == old_window and (aligned == 0 or start % window == 0) and start <= now + window then
    if over then return window_of(held, window, aligned), 0, false end
    return start, used, false
  end
  return window_of(now, window, aligned), over and 0 or math.min(used, amount), true
end

local function reset_after(start, used, now, window)
  if used == 0 then return 0 end
  return start + window - now
end

twins.fw = function(packed, value, now, take)
  local cost, amount, window, aligned = struct.unpack('<dddd', packed)
  local start, used, changed = fit(value, now, amount, window, aligned)
  local free = amount - used
  if free < 0 then free = 0 end
  local allowed, retry_after = free >= cost, 0
  if not allowed then
    retry_after = start + window - now
  elseif take then
    used, free, changed = used + cost, free - cost, true
  end
  return allowed, free, retry_after, reset_after(start, used, now, window),
    changed and struct.pack('<Bddd', VERSION, start, used, window)
end

if refunds then
  refunds.fw = function(packed, value, now, charged_at)
    local units, amount, window, aligned = struct.unpack('<dddd', packed)
    local start, used, changed = fit(value, now, amount, window, aligned)
    local given = 0
    if charged_at >= start then given = math.min(units, used) end
    used = used - given
    return given, reset_after(start, used, now, window),
      (changed or given > 0) and struct.pack('<Bddd', VERSION, start, used, window)
  end
end
