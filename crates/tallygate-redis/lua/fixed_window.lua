-- fixed_window: counts per window, aligned to the epoch or started by the first call.
-- Twin: tallygate/src/algorithm/fixed_window.rs
-- limit: cost, amount (units); window (microseconds); aligned (1 or 0)
-- For a state that it cannot read, it returns ! and its version.
-- state: start (microseconds), used (units), and the window it was written with
--[[load]]
local cost, amount, window, aligned = struct.unpack('<dddd', packed)

-- The current window and the units used in it, converted to the limit.
local start, used = now, 0
if value then
  if #value ~= 25 then return '!' .. string.sub(value, 1, 1) end
  local version, old_start, old_used, old_window = struct.unpack('<Bddd', value)
  if version ~= 1 or not (old_start >= 0 and old_start < 2 ^ 53 and old_used >= 0 and old_window >= 1
    and old_start % 1 == 0 and old_used % 1 == 0 and old_window % 1 == 0) then
    return '!' .. string.sub(value, 1, 1)
  end
  local held = now
  if held < old_start then held = old_start end
  -- A window whose units were all given back has not started: it must equal one whose state was dropped.
  if held - old_start < old_window then used = old_used end
  if window == old_window and (aligned == 0 or old_start % window == 0) and old_start <= now + window then
    start = held
    if used > 0 then start = old_start end
  else
    -- What is owed stays used under other numbers.
    local most = head and amount + math.min(head.debt, amount) or amount
    if used > most then used = most end
    changed = true
  end
end
if aligned == 1 then start = start - start % window end

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
    retry_after = start + window - now
  elseif verb == 'check' or verb == 'charge' then
    used, remaining, changed = used + cost, remaining - cost, true
  end
end

if used > amount then remaining, debt = 0, used - amount end
if used > 0 then reset_after = start + window - now end
changed = changed and struct.pack('<Bddd', 1, start, used, window)
--[[save]]
