-- Writes a packed state and its TTL in one command. The verb is check.
if changed then
  redis.call('SET', key, changed, 'PX', string.format('%.0f', math.ceil(reset_after / 1000) + SLACK))
end
