-- Any call, or several that share their states: reads the clock once, decides them one after the other as separate runs would,
-- and writes every state once, at the end.
-- KEYS         the states of the checks of all calls, in order; all in one slot
-- ARGV[1]      how many calls
-- for each call, in order:
--   ARGV[+1]   check, peek, refund or reset
--   ARGV[+2]   1 if the call is already denied, else 0; then, if the call takes what is left, the most units, a double. The costs of its
--              checks are then the least units, all the same
--   ARGV[+3]   13 bytes for each check: the kind of its state (2 letters); e, q or s for enforce, quota or shadow; d if it drains;
--              h if it can never be allowed; when the units of a refund were charged, a double in microseconds, 0 for now
--   ARGV[+4…]  for each check its cost and the numbers of its limit, as in check.lua
-- reply        of one call a string, of several an array of them. Whether the call is allowed (1 byte), now (a double), then for each
--              check 1 byte: 0 denied, 1 allowed, 2 unreadable. After 0 or 1 four doubles: remaining, retry_after, reset_after and the
--              units charged or given back. After 2 the length (4 bytes) and the text that the twin returned. If a check that
--              decides the call cannot be read, the reply is that text alone, and nothing was written for this call. So it is if a
--              call of several cannot be written.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local twins = {}
-- Packed states as they are now (false for none), and the TTLs of those to write.
local states, ttls = {}, {}
--[[twins]]

local sub, byte, find, pack = string.sub, string.byte, string.find, struct.pack
local ENFORCE, QUOTA, SHADOW, DRAINS, HOPELESS = byte('eqsdh', 1, 5)

-- Runs a twin. An error becomes a reply, like that of a twin that cannot read its state; but that of a server that is no master ends the
-- script, so that the client looks for the master.
local function try(twin, ...)
  local done, fit, remaining, retry_after, reset_after, changed, given = pcall(twin, ...)
  if done then return fit, remaining, retry_after, reset_after, changed, given end
  -- The pcall of every server catches a text.
  if find(fit, 'READONLY') then error(fit, 0) end
  return '?' .. fit
end

local function unreadable(text)
  return pack('<BI', 2, #text) .. text
end

-- One call: its checks are KEYS[first] to KEYS[first + count - 1], and their numbers follow ARGV[at]. In addition to the verbs of a
-- call, a twin takes adopt: it writes only a state that was converted to other numbers.
local function call(verb, terms, heads, first, at, count)
  local denied, at_most = sub(terms, 1, 1) == '1'
  if #terms > 1 then at_most = struct.unpack('<d', terms, 2) end
  local answers, enforced, quotas, quota = {}, not denied, false, false
  -- For each check judged on its own: whether it fits, what is left, the waits, and whether its state was converted.
  local judged = {}
  for i = 1, count do
    local key, packed, head = KEYS[first + i - 1], ARGV[at + i], 13 * i - 12
    local twin = twins[sub(heads, head, head + 1)]
    if verb == 'reset' then
      answers[i] = pack('<Bdddd', 1, 0, 0, 0, redis.call('UNLINK', key))
      states[key], ttls[key] = nil, nil
    elseif verb == 'refund' then
      local charged_at = struct.unpack('<d', heads, head + 5)
      if charged_at == 0 then charged_at = now end
      local refused, _, _, _, _, given = try(twin, key, packed, now, 'refund', charged_at)
      if type(refused) == 'string' then
        answers[i] = unreadable(refused)
      else
        -- A refund may exceed the capacity, so a cost of zero is used to read what is left.
        local readable, remaining, _, reset_after = twin(key, pack('<d', 0) .. sub(packed, 9), now, 'peek')
        -- What the refund has left of a damaged log may be unreadable.
        local damaged = type(readable) == 'string'
        answers[i] = damaged and unreadable(readable) or pack('<Bdddd', 1, remaining, 0, reset_after, given)
      end
    else
      local mode, drains, hopeless = byte(heads, head + 2, head + 4)
      -- If all earlier checks are allowed, the last one is judged and charged at once: no later check can deny the call.
      local last = i == count and verb == 'check' and enforced and not quotas
        and drains ~= DRAINS and hopeless ~= HOPELESS and not at_most
      local fit, remaining, retry_after, reset_after, changed = try(twin, key, packed, now, last and 'check' or 'peek')
      if type(fit) == 'string' then
        if mode ~= SHADOW then return fit end
        answers[i] = unreadable(fit)
      else
        fit = fit and hopeless ~= HOPELESS
        if last then
          answers[i] = pack('<Bdddd', fit and 1 or 0, remaining, retry_after, reset_after, fit and struct.unpack('<d', packed) or 0)
        else
          judged[i] = { fit, remaining, retry_after, reset_after, changed }
        end
        if mode == ENFORCE then
          enforced = enforced and fit
        elseif mode == QUOTA then
          quotas, quota = true, quota or fit
        end
      end
    end
  end

  local all = enforced and (quota or not quotas)
  -- How many units it takes of what is left: see Settlement::granted in tallygate/src/call/settlement.rs.
  local granted = at_most
  if at_most then
    local most = 0
    for place = 1, count do
      local mode = byte(heads, 13 * place - 10)
      if mode == ENFORCE then
        granted = math.min(granted, judged[place][2])
      elseif mode == QUOTA then
        most = math.max(most, judged[place][2])
      end
    end
    if quotas then granted = math.min(granted, most) end
  end
  for i = 1, count do
    if not answers[i] then
      -- What to take from a state: see Settlement::taking.
      local key, packed, head = KEYS[first + i - 1], ARGV[at + i], 13 * i - 12
      local twin = twins[sub(heads, head, head + 1)]
      local mode, drains = byte(heads, head + 2, head + 3)
      local fit, remaining, retry_after, reset_after, changed = unpack(judged[i])
      local units = 0
      local takes = verb == 'check'
        and (all or mode == ENFORCE and not fit or mode == QUOTA and enforced)
      if takes and fit then
        units = struct.unpack('<d', packed)
        if granted then
          -- See Settlement::part_of_grant.
          units = granted
          if remaining < granted then units = mode == QUOTA and 0 or remaining end
          packed = pack('<d', units) .. sub(packed, 9)
        end
      end
      if units > 0 then
        local _
        _, remaining, retry_after, reset_after = twin(key, packed, now, 'check')
      elseif takes and not fit and drains == DRAINS and remaining > 0 then
        units = remaining
        twin(key, pack('<d', units) .. sub(packed, 9), now, 'check')
        local _
        _, remaining, retry_after, reset_after = twin(key, packed, now, 'peek')
      elseif verb == 'check' and changed then
        twin(key, packed, now, 'adopt')
      end
      answers[i] = pack('<Bdddd', fit and 1 or 0, remaining, retry_after, reset_after, units)
    end
  end
  return pack('<Bd', all and 1 or 0, now) .. table.concat(answers)
end

-- Writes the packed states that calls have changed.
local function save_all()
  for key, ttl in pairs(ttls) do
    redis.call('SET', key, states[key], 'PX', string.format('%.0f', ttl))
  end
end

-- The replies to all calls, in order, each by `decide`.
local function replies_by(decide)
  local replies, first, at = {}, 1, 1
  for i = 1, tonumber(ARGV[1]) do
    local heads = ARGV[at + 3]
    local count = #heads / 13
    replies[i] = decide(ARGV[at + 1], ARGV[at + 2], heads, first, at + 3, count)
    first, at = first + count, at + 3 + count
  end
  return replies
end

local function all_together()
  local replies = replies_by(call)
  save_all()
  return replies
end

-- One call as by a run of its own.
local function alone(...)
  states, ttls = {}, {}
  local reply = call(...)
  save_all()
  return reply
end

local done, replies = pcall(all_together)
if done then return replies[2] and replies or replies[1] end
-- A server that takes no writes for now refuses the first of a script, so nothing was written: each of several calls is decided alone,
-- and those that write nothing are answered.
local refusal = replies
if ARGV[1] == '1' or not (find(refusal, 'OOM') or find(refusal, 'MISCONF') or find(refusal, 'NOREPLICAS')) then
  return redis.error_reply(refusal)
end
return replies_by(function(...)
  local answered, reply = pcall(alone, ...)
  return answered and reply or '?' .. reply
end)
