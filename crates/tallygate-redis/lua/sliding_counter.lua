-- sliding_counter: two windows, the previous one weighted by its remaining share.
-- Twin: tallygate/src/algorithm/sliding_counter.rs
-- limit: cost, amount (units); window, tick (microseconds)
-- For a state that it cannot read, it returns ! and its version.
-- state: start (microseconds), previous, current (units), and the window and tick it was written with
--[[load]]
local cost, amount, window, tick = struct.unpack('<dddd', packed)
local ticks = window / tick
-- What is owed stays used under other numbers.
local most = head and amount + math.min(head.debt, amount) or amount

-- The two windows now, converted to the limit, and how far now is into the current one.
local start, previous, current, into = now - now % window, 0, 0, now % window
if value then
  if #value ~= 41 then return '!' .. string.sub(value, 1, 1) end
  local version, old_start, old_previous, old_current, old_window, old_tick = struct.unpack('<Bddddd', value)
  if version ~= 1 or not (old_start >= 0 and old_start < 2 ^ 53 and old_previous >= 0
    and old_current >= 0 and old_window >= 1 and old_tick >= 1 and old_start % 1 == 0 and old_previous % 1 == 0
    and old_current % 1 == 0 and old_tick % 1 == 0 and old_window % old_tick == 0
    and (old_previous + old_current) * (old_window / old_tick) < 2 ^ 53) then
    return '!' .. string.sub(value, 1, 1)
  end
  local held = now
  if held < old_start then held = old_start end
  local latest = held - held % old_window
  if latest == old_start then
    previous, current = old_previous, old_current
  elseif latest == old_start + old_window then
    previous = old_current
  end
  if window == old_window and tick == old_tick and old_start <= now + 2 * window
    and old_previous <= most and old_current <= most then
    start, into = latest, held - latest
  else
    -- What counts as used, in units times ticks of the window.
    local old_ticks, old_into = old_window / old_tick, held - latest
    local load = previous * (old_ticks - (old_into - old_into % old_tick) / old_tick) + current * old_ticks
    previous, current = 0, (load + -load % old_ticks) / old_ticks
    if current > most then current = most end
    changed = true
  end
end

--[[converted]]
if verb == 'refund' then
  if charged_at >= start then
    given = current
    if given > cost then given = cost end
    current = current - given
  end
  if charged_at + window >= start then
    local rest = cost - given
    if rest > previous then rest = previous end
    previous, given = previous - rest, given + rest
  end
  changed = changed or given > 0
else
  -- How many ticks of the previous window still count.
  local weight = ticks - (into - into % tick) / tick
  local left = amount * ticks - (previous * weight + current * ticks)
  if verb == 'charge' then left = left - cost * ticks end
  if left < 0 then left, debt = 0, (-left + left % ticks) / ticks end
  remaining = (left - left % ticks) / ticks
  allowed = remaining >= cost or verb == 'charge'
  if not allowed then
    -- The call fits once the weight of the older window has dropped to room / older.
    local older, room, from = previous, amount - current - cost, start
    if room < 0 then older, room, from = current, amount - cost, start + window end
    local product = room * ticks
    retry_after = from + (ticks - (product - product % older) / older) * tick - now
  elseif verb == 'charge' then
    current, changed = current + cost, true
  elseif verb == 'check' then
    current, remaining, changed = current + cost, remaining - cost, true
  end
end

if current > 0 then
  reset_after = start + 2 * window - now
elseif previous > 0 then
  reset_after = start + window - now
end
changed = changed and struct.pack('<Bddddd', 1, start, previous, current, window, tick)
--[[save]]
