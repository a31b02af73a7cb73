-- What is written at the end of a script: first the packed states, then what must not be the first write, because a server without
-- memory refuses only that.
local save_head

local function write_later(...)
  later[#later + 1] = { ... }
end

local function save_all()
  for key, ttl in pairs(ttls) do
    if heads[key] then
      save_head(key, ttl)
    else
      redis.call('SET', key, states[key], 'PX', string.format('%.0f', ttl))
    end
  end
  for i = 1, #later do redis.call(unpack(later[i])) end
end
