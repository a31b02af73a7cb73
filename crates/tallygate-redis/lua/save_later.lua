-- Keeps a packed state and its TTL until the end of the script.
if changed and verb ~= 'peek' then
  states[key], ttls[key] = changed, math.ceil(reset_after / 1000) + SLACK
end
