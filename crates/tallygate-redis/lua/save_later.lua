-- Keeps a packed state and its TTL until the end of the script.
if changed and verb ~= 'peek' then
  undo[key] = undo[key] or { states[key], ttls[key] }
  states[key], ttls[key] = changed, math.ceil(reset_after / 1000) + SLACK
end
