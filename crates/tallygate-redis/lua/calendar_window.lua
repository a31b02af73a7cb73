-- calendar_window: counts per window of a calendar: a day, a week, a month or a year of a time zone.
-- Twin: tallygate/src/algorithm/calendar_window.rs
-- limit: cost, amount (units); the longest that a window can be (microseconds); the number of the calendar's rule; then eight
--   instants at which windows begin, in order (microseconds)
-- For a state that it cannot read, it returns ! and its version; if now is not within a window of these instants, @ and now.
-- state: start and end of a window (microseconds), used (units), and the number of the rule it was written with
local cost, amount, full, calendar = struct.unpack('<dddd', packed)

-- The window of now, by these instants.
local start, stop = struct.unpack('<d', packed, 33), nil
for at = 41, 89, 8 do
  local boundary = struct.unpack('<d', packed, at)
  if now < boundary then
    stop = boundary
    break
  end
  start = boundary
end
if now < start or not stop then return '@' .. struct.pack('<d', now) end

--[[load]]
-- The window in force and the units used in it, converted to the limit.
local used = 0
if value then
  if #value ~= 33 then return '!' .. string.sub(value, 1, 1) end
  local version, old_start, old_stop, old_used, old_calendar = struct.unpack('<Bdddd', value)
  if version ~= 1 or not (old_start >= 0 and old_stop >= 1 and old_stop < 2 ^ 53 and old_used >= 0 and old_calendar >= 0
    and old_start % 1 == 0 and old_stop % 1 == 0 and old_used % 1 == 0 and old_calendar % 1 == 0) then
    return '!' .. string.sub(value, 1, 1)
  end
  -- A window whose units were all given back has not started: it must equal one whose state was dropped.
  if now < old_stop then used = old_used end
  if calendar == old_calendar and old_start <= now + full and old_stop - old_start <= full then
    -- A window that has not ended stays what it is, even if these instants divide time in another way.
    if used > 0 then start, stop = old_start, old_stop end
  else
    -- What is owed stays used under other numbers.
    local most = head and amount + math.min(head.debt, amount) or amount
    if used > most then used = most end
    changed = true
  end
end

--[[converted]]
if verb == 'refund' then
  if charged_at >= start then given = used end
  if given > cost then given = cost end
  used, changed = used - given, changed or given > 0
else
  remaining = amount - used
  if remaining < 0 then remaining = 0 end
  allowed = remaining >= cost or verb == 'charge'
  if not allowed then
    retry_after = stop - now
  elseif verb == 'check' or verb == 'charge' then
    used, remaining, changed = used + cost, remaining - cost, true
  end
end

if used > amount then remaining, debt = 0, used - amount end
if used > 0 then reset_after = stop - now end
changed = changed and struct.pack('<Bdddd', 1, start, stop, used, calendar)
--[[save]]
