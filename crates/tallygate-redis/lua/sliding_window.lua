-- sliding_window: counts per sub-window, the oldest counted in full. Twin: tallygate/src/algorithm/sliding_window.rs
-- limit: cost, amount (units); window (microseconds); slots (sub-windows per window)
-- For a state that it cannot read, it returns ! and its version.
-- state: the window and slots it was written with, newest (sub-windows since the epoch), and for each sub-window that
--   saw a call, oldest first, its number modulo 256 and its units: a head of 18 bytes and cells of 5
--[[load]]
local cost, amount, window, slots = struct.unpack('<dddd', packed)
local slot = window / slots

-- The current sub-window and the cells, converted to the limit: pairs of age (sub-windows behind the current one) and
-- units. The first spent of them no longer count; those that do are the current one and as many before it as make a
-- window.
local held, cells, spent, total = (now - now % slot) / slot, {}, 0, 0
if value then
  if #value < 18 then return '!' .. string.sub(value, 1, 1) end
  local version, old_window, old_slots, newest = struct.unpack('<BdBd', value)
  if version ~= 1 or (#value - 18) % 5 ~= 0 or #value > 23 + 5 * old_slots
    or not (old_window >= 1 and old_slots >= 1 and newest >= 0 and newest < 2 ^ 53 and newest % 1 == 0) then
    return '!' .. string.sub(value, 1, 1)
  end
  local old_slot = old_window / old_slots
  local old_held = (now - now % old_slot) / old_slot
  if old_held < newest then old_held = newest end
  local count = (#value - 18) / 5
  cells = { struct.unpack('<' .. string.rep('BI', count), value, 19) }
  cells[2 * count + 1] = nil
  local last = 256
  for i = 1, 2 * count, 2 do
    local behind = (newest - cells[i]) % 256
    if behind >= last then return '!' end
    last = behind
    local age = behind + old_held - newest
    cells[i] = age
    if age > old_slots then spent = spent + 1 else total = total + cells[i + 1] end
  end
  if window == old_window and slots == old_slots and newest * slot <= now + window + slot then
    held = old_held
  else
    -- What is owed stays used under other numbers.
    local most = head and amount + math.min(head.debt, amount) or amount
    if total > most then total = most end
    cells, spent, changed = {}, 0, true
    if total > 0 then cells = { 0, total } end
  end
end

--[[converted]]
if verb == 'refund' then
  local own = held - (charged_at - charged_at % slot) / slot
  if own <= slots then
    -- Give back what the call itself charged, then, if that is less, from the oldest sub-window that counts.
    for pass = 1, 2 do
      for i = 2 * spent + 1, #cells, 2 do
        local taken = cost - given
        if taken > cells[i + 1] then taken = cells[i + 1] end
        if pass == 1 and cells[i] ~= own then taken = 0 end
        cells[i + 1], given = cells[i + 1] - taken, given + taken
      end
    end
  end
  changed, spent = changed or given > 0, 0
else
  remaining = amount - total
  if remaining < 0 then remaining = 0 end
  allowed = remaining >= cost or verb == 'charge'
  if not allowed then
    local needed, i = total + cost - amount, 2 * spent + 1
    while cells[i + 1] < needed do
      needed, i = needed - cells[i + 1], i + 2
    end
    retry_after = (held - cells[i] + slots + 1) * slot - now
  elseif verb == 'check' or verb == 'charge' then
    local last = #cells
    if cells[last - 1] == 0 then
      cells[last] = cells[last] + cost
    else
      cells[last + 1], cells[last + 2] = 0, cost
    end
    total, remaining, changed = total + cost, remaining - cost, true
  end
  if total > amount then remaining, debt = 0, total - amount end
end

for i = #cells - 1, 1, -2 do
  if cells[i + 1] > 0 then
    if cells[i] <= slots then reset_after = (held - cells[i] + slots + 1) * slot - now end
    break
  end
end
if changed then
  local newest = #cells > 0 and held - cells[#cells - 1] or 0
  for i = 1, #cells, 2 do cells[i] = (held - cells[i]) % 256 end
  local format = '<BdBd' .. string.rep('BI', #cells / 2 - spent)
  changed = struct.pack(format, 1, window, slots, newest, unpack(cells, 2 * spent + 1))
end
--[[save]]
