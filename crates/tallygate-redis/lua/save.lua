-- Writes a packed state and its TTL in one command.
if changed and verb ~= 'peek' then
  redis.call('SET', key, changed, 'PX', string.format('%.0f', math.ceil(reset_after / 1000) + SLACK))
end
