-- concurrency: counts what is in flight. Units are only reserved, and come back when their hold ends.
-- Twin: tallygate/src/algorithm/concurrency.rs
-- limit: cost, amount (units); the longest time without a renewal (microseconds)
-- For a state that it cannot read, it returns ! and its version.
-- state: an instant before which no deadline of a hold is later (microseconds), and the units of open holds
--[[load]]
local cost, amount, full = struct.unpack('<ddd', packed)

-- What is in flight.
local ends, used = now, 0
if value then
  if #value ~= 17 then return '!' .. string.sub(value, 1, 1) end
  local version, old_ends, old_used = struct.unpack('<Bdd', value)
  if version ~= 1 or not (old_ends >= 0 and old_ends < 2 ^ 53 and old_used >= 0 and old_used < 2 ^ 53
    and old_ends % 1 == 0 and old_used % 1 == 0) then
    return '!' .. string.sub(value, 1, 1)
  end
  -- With nothing in flight, it must equal a state that was dropped.
  if now < old_ends and old_used > 0 then ends, used = old_ends, old_used end
  if old_ends > now + full then
    -- What is owed stays used.
    local most = head and amount + math.min(head.debt, amount) or amount
    if used > most then used = most end
    if used > 0 then ends = now + full end
    changed = true
  end
end

if verb == 'refund' then
  given = used
  if given > cost then given = cost end
  used, changed = used - given, changed or given > 0
else
  remaining = amount - used
  if remaining < 0 then remaining = 0 end
  allowed = remaining >= cost or verb == 'charge'
  if not allowed then
    retry_after = ends - now
    -- If one unit is missing, the next hold that ends makes room.
    if head and not changed and head.count > 0 and head.due > now and used + cost == amount + 1 then retry_after = head.due - now end
  elseif verb == 'check' or verb == 'charge' then
    used, remaining, changed = used + cost, remaining - cost, true
    -- The deadline of the hold follows.
    if ends < now + 1 then ends = now + 1 end
  end
end

if used > amount then remaining, debt = 0, used - amount end
if used > 0 then reset_after = ends - now end
changed = changed and struct.pack('<Bdd', 1, ends, used)
--[[save]]
