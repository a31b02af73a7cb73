-- Several checks, all or none: reads the clock once, looks at every state, and only then writes.
-- KEYS[i]      the state of check i; all in one slot
-- ARGV[1]      take (charge all or none) or look (change nothing)
-- ARGV[2]      the two letters of each check's twin
-- ARGV[2 + i]  check i: its cost and the numbers of its limit
-- reply        now, then for each check allowed (1 byte), remaining, retry_after, reset_after; as in check.lua
-- Every state is read and judged before the first write: a state that cannot be read stops the script unchanged.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local twins = {}
--[[twins]]

-- Besides take and look, verb may be adopt: to write only a state that was made to fit other numbers.
local function step(i, verb)
  local key, packed, kind = KEYS[i], ARGV[2 + i], string.sub(ARGV[2], 2 * i - 1, 2 * i)
  local value = kind ~= 'sl' and redis.call('GET', key)
  local allowed, remaining, retry_after, reset_after, changed = twins[kind](key, value, packed, now, verb, 0)
  if changed and kind ~= 'sl' and verb ~= 'look' then
    redis.call('SET', key, changed, 'PX', string.format('%.0f', math.ceil(reset_after / 1000) + SLACK))
  end
  return struct.pack('<Bddd', allowed and 1 or 0, remaining, retry_after, reset_after), allowed, changed
end

local statuses, adopted, all_allowed = {}, {}, true
for i = 1, #KEYS do
  local allowed
  statuses[i], allowed, adopted[i] = step(i, 'look')
  all_allowed = all_allowed and allowed
end
if ARGV[1] == 'take' then
  for i = 1, #KEYS do
    if all_allowed then
      statuses[i] = step(i, 'take')
    elseif adopted[i] then
      step(i, 'adopt')
    end
  end
end
return struct.pack('<d', now) .. table.concat(statuses)
