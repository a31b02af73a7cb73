-- token_bucket: refills evenly and holds at most the burst. Twin: tallygate/src/algorithm/token_bucket.rs
-- limit: cost, capacity (units); tick (microseconds); refill (parts per tick), unit (parts per unit)
-- For a state that it cannot read, it returns ! and its version.
-- state: at (microseconds), used (parts), and the tick, refill and unit it was written with
--[[load]]
local cost, capacity, tick, refill, unit = struct.unpack('<ddddd', packed)
local whole = capacity * unit
-- What is owed stays used under other numbers.
local most = head and whole + math.min(head.debt, capacity) * unit or whole

-- The state as of now, converted to the limit.
local at, used = now - now % tick, 0
if value then
  if #value ~= 41 then return '!' .. string.sub(value, 1, 1) end
  local version, old_at, old_used, old_tick, old_refill, old_unit = struct.unpack('<Bddddd', value)
  if version ~= 1
    or not (old_at >= 0 and old_at < 2 ^ 53 and old_used >= 0 and old_used < 2 ^ 53 and old_tick >= 1 and old_refill >= 1 and old_unit >= 1
      and old_at % old_tick == 0 and old_tick % 1 == 0 and old_used % 1 == 0 and old_refill % 1 == 0 and old_unit % 1 == 0) then
    return '!' .. string.sub(value, 1, 1)
  end
  -- The last tick at or before now, unless the state is already later.
  local held = now - now % old_tick
  if held < old_at then held = old_at end
  used = old_used - (held - old_at) / old_tick * old_refill
  if used < 0 then used = 0 end
  if tick == old_tick and refill == old_refill and unit == old_unit
    and used <= most and (old_at <= now or old_at - now <= (whole + -whole % refill) / refill * tick) then
    at = held
  else
    -- Whole units stay as they are; a fraction is converted in doubles, and rounded up by enough to cover their error.
    local rest = used % old_unit
    local whole_units = (used - rest) / old_unit
    if rest > 0 then
      rest = math.floor(rest / old_unit * unit) + 2
      if rest > unit then rest = unit end
    end
    used, changed = most, true
    if whole_units < most / unit then used = whole_units * unit + rest end
  end
end

--[[converted]]
if verb == 'refund' then
  -- Units regained since the charge are not given back a second time.
  local regained, since = 0, at - (charged_at - charged_at % tick)
  if since > 0 then
    local parts = since / tick * refill
    regained = (parts - parts % unit) / unit
  end
  given = (used + -used % unit) / unit
  if given > cost - regained then given = cost - regained end
  if given < 0 then given = 0 end
  used = used - given * unit
  if used < 0 then used = 0 end
  changed = changed or given > 0
else
  local left = whole - used
  remaining = (left - left % unit) / unit
  allowed = remaining >= cost or verb == 'charge'
  if not allowed then
    local missing = cost * unit - left
    retry_after = at + (missing + -missing % refill) / refill * tick - now
  elseif verb == 'check' or verb == 'charge' then
    used, remaining, changed = used + cost * unit, remaining - cost, true
  end
end

if used > whole then
  local beyond = used - whole
  remaining, debt = 0, (beyond + -beyond % unit) / unit
end
if used > 0 then reset_after = at + (used + -used % refill) / refill * tick - now end
changed = changed and struct.pack('<Bddddd', 1, at, used, tick, refill, unit)
--[[save]]
