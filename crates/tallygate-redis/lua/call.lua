-- Any call, or several that share their states: reads the clock once, decides them one after the other as separate runs would,
-- and writes every state once, at the end.
-- A server recreates every function of a script on every run. So this is the shell of several scripts: the twins, and each part at a
-- placeholder, are in a script only if a call of its runs needs them (see Needs in scripts.rs). The functions of holds.lua are called only
-- where a call looks at holds (aware), those of requests.lua only if it has an id.
-- KEYS         for each call, in order, the states of its checks; if it looks at holds, the open holds of each; if it reserves, its record;
--              if it has an id, its answer. All are in one slot
-- ARGV[1]      how many calls
-- for each call, in order:
--   ARGV[+1]   check, peek, refund, reset or reserve
--   ARGV[+2]   1 if the call is already denied, i if it has an id, else 0; h if it looks at holds, else -; c if it has limits of a calendar, else -. Then, if the
--              call takes what is left, the most units, a double. The costs of its checks are then the least units, all the same. If it
--              reserves, the id of the hold (16 bytes), for how long, and for how long at most with all extensions (doubles, microseconds), and 18 bytes for each check: on_abandon (c, r
--              or t), overrun (d, c or r), how many holds may be open, and how many units held (doubles). If it has limits of a
--              calendar, from when and until when the instants that are sent with all of them reach, two doubles. If it has an id, last a
--              fingerprint (16 bytes) and for how long its answer is remembered (a double, microseconds). The answer of a refund is forgotten
--   ARGV[+3]   13 bytes for each check: the kind of its state (2 letters); e, q or s for enforce, quota or shadow, or a capital of
--              these if it is a further payer of the cost of the check before it; d if it drains;
--              h if it can never be allowed; when the units of a refund were charged, a double in microseconds, 0 for now
--   ARGV[+4…]  for each check its cost and the numbers of its limit, as in check.lua
-- reply        of one call a string, of several an array of them. Whether the call is allowed (1 byte), now (a double), then for each
--              check 1 byte: 0 denied, 1 allowed, 2 unreadable, 3 denied because no more may be held. After 0, 1 or 3 four doubles:
--              remaining, retry_after, reset_after and the units charged or given back; two more if the call looks at holds: the units
--              held and the debt. After 2 the length (4 bytes) and the text that the twin returned. If a check that
--              decides the call cannot be read, the reply is that text alone, and nothing was written for this call. So it is if a
--              call of several cannot be written. It is 2 and what is remembered, from h or - on, if the call was answered before, and
--              3 and now (a double) if its id belongs to another call. It is ! and a 2 if units of a state are held or owed and the call does not look at
--              holds: it has to be asked again, and then look. If now is not within what the calendars of a call reach, its reply is @ and
--              now, and nothing was written for it
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local KEYS, ARGV = KEYS, ARGV
--[[common]]
local twins = {}
-- Packed states as they are now (false for none), and the TTLs of those to write.
local states, ttls = {}, {}
-- The heads of states (see holds.lua), what is to be written after the states, and the answers to calls with an id (see requests.lua).
local heads, later, looked, remembered, aware = {}, {}, {}, {}, false
--[[twins]]

local sub, byte, find, pack = string.sub, string.byte, string.find, struct.pack
local ENFORCE, QUOTA, SHADOW, DRAINS, HOPELESS = byte('eqsdh', 1, 5)
local DENIED, WITH_ID, LOOKS, REACHES = byte('1ihc', 1, 4)
-- Capitals are below: modes of further payers.
local FURTHER = byte('a')
-- The answer of a twin to a call that does not look at holds.
local MARKED = '!\2'

-- Runs a twin. An error becomes a reply, like that of a twin that cannot read its state; but that of a server that is no master ends the
-- script, so that the client looks for the master.
local function try(twin, ...)
  local done, fit, remaining, retry_after, reset_after, changed, given, debt = pcall(twin, ...)
  if done then return fit, remaining, retry_after, reset_after, changed, given, debt end
  -- The pcall of every server catches a text.
  if find(fit, 'READONLY') then error(fit, 0) end
  return '?' .. fit
end

local function unreadable(text)
  return pack('<BI', 2, #text) .. text
end

--[[writes]]

--[[holds]]

--[[requests]]

local function answer(key, packed, flag, remaining, retry_after, reset_after, units, debt, fits)
  local text = pack('<Bdddd', flag, remaining, retry_after, reset_after, units)
  if not aware then return text end
  return text .. pack('<dd', held(key, packed, remaining, debt, fits), owed(key, debt))
end

-- One call: its checks are KEYS[first] to KEYS[first + count - 1], and their numbers follow ARGV[at]. In addition to the verbs of a
-- call, a twin takes adopt: it writes only a state that was converted to other numbers.
local function call(verb, terms, specs, first, at, count)
  local standing, looks, calendars = byte(terms, 1, 3)
  local request
  if standing == WITH_ID then request, terms = take_request(terms) end
  local denied, reserves, at_most = standing == DENIED, verb == 'reserve', nil
  aware, calendars = looks == LOOKS, calendars == REACHES
  if calendars then
    local from, till = struct.unpack('<dd', terms, #terms - 15)
    if now < from or now >= till then return '@' .. pack('<d', now) end
  end
  if not reserves and #terms == (calendars and 27 or 11) then at_most = struct.unpack('<d', terms, 4) end
  local charges = verb == 'check' or reserves
  local memory = request and KEYS[first + (aware and 2 or 1) * count + (reserves and 1 or 0)]
  local again = request and verb ~= 'refund' and recall(memory, request)
  if again then return again end
  local answers, charged, enforced, quotas, quota = {}, reserves and {}, not denied, false, false
  -- For each check judged on its own: whether it fits, what is left, the waits, and whether its state was converted.
  local judged = {}
  -- Of a cost with several payers: its first one, what they have together, what is to be paid or given back of it, and why one of them
  -- cannot be read. See tallygate/src/store/memory/funds.rs.
  local payer, has, rest, damaged
  for n = 1, count do
    -- What is given back goes to the last payer first.
    local i = verb == 'refund' and count + 1 - n or n
    local key, packed, head = KEYS[first + i - 1], ARGV[at + i], 13 * i - 12
    local kind, mode, more = sub(specs, head, head + 1), byte(specs, head + 2), (byte(specs, head + 15) or FURTHER) < FURTHER
    local funded = more
    if mode < FURTHER then
      mode, funded = mode + 32, true
    elseif more then
      payer, has, damaged = i, 0, nil
    end
    local cost = (funded or verb == 'refund') and struct.unpack('<d', packed)
    if not more then rest = cost end
    local twin, opens = twins[kind], KEYS[first + count + i - 1]
    local closed = aware and verb ~= 'reset' and open(kind, key, opens, packed, now)
    if verb == 'reset' then
      local existed = redis.call('UNLINK', key)
      redis.call('UNLINK', opens)
      states[key], ttls[key], heads[key] = nil, nil, nil
      answers[i] = answer(key, packed, 1, 0, 0, 0, existed, 0)
    elseif closed then
      if charges and mode ~= SHADOW then return closed end
      answers[i], damaged = unreadable(closed), closed
    elseif verb == 'refund' then
      if aware and heads[key] then
        local fits, _, _, _, corrupt = look(kind, key, packed, now)
        close_unless(fits or corrupt, kind, key, opens, packed)
      end
      local charged_at = struct.unpack('<d', specs, head + 5)
      if charged_at == 0 then charged_at = now end
      if funded then packed = pack('<d', rest) .. sub(packed, 9) end
      local refused, _, _, _, changed, given = try(twin, key, packed, now, 'refund', charged_at)
      if type(refused) == 'string' then
        answers[i] = unreadable(refused)
      else
        rest = rest - given
        -- A refund may exceed the capacity, so a cost of zero is used to read what is left.
        local _, remaining, debt, reset_after, damaged = look(kind, key, packed, now)
        if changed then keep(kind, key, packed, now, debt) end
        -- What the refund has left of a damaged log may be unreadable.
        answers[i] = damaged and unreadable(damaged) or answer(key, packed, 1, remaining, 0, reset_after, given, debt, true)
      end
    else
      local drains, hopeless = byte(specs, head + 3, head + 4)
      -- If all earlier checks are allowed, the last one is judged and charged at once: no later check can deny the call.
      local last = i == count and verb == 'check' and enforced and not quotas and not aware
        and drains ~= DRAINS and hopeless ~= HOPELESS and not at_most and not funded
      -- A payer is only asked what it has.
      if funded then packed = pack('<d', 0) .. sub(packed, 9) end
      local fit, remaining, retry_after, reset_after, changed, _, debt = try(twin, key, packed, now, last and 'check' or 'peek')
      if type(fit) == 'string' then
        if mode ~= SHADOW or fit == MARKED then return fit end
        answers[i], damaged = unreadable(fit), fit
      else
        if funded then
          has = has + remaining
          fit = has >= cost
        end
        fit = fit and hopeless ~= HOPELESS
        local full = false
        if charges and aware then close_unless(not changed, kind, key, opens, packed) end
        if fit and reserves then
          local known = heads[key] or { count = 0, due = 0 }
          local most_open, most = struct.unpack('<dd', terms, 20 + 18 * i)
          full = known.count >= most_open
            or held(key, packed, remaining, debt, not changed) + struct.unpack('<d', packed) > most
          if full then fit, retry_after = false, math.max(retry_after, known.due - now, 1) end
        end
        if last then
          answers[i] = answer(key, packed, fit and 1 or 0, remaining, retry_after, reset_after, fit and struct.unpack('<d', packed) or 0)
        else
          judged[i] = { fit, remaining, retry_after, reset_after, changed, debt, full }
        end
        -- Of several payers the last tells whether they have enough.
        if not more then
          if mode == ENFORCE then
            enforced = enforced and fit
          elseif mode == QUOTA then
            quotas, quota = true, quota or fit
          end
          if funded and not damaged then
            for j = payer, i do judged[j][1], judged[j].has = fit, has end
          end
        end
      end
    end
    if damaged and funded and not more and verb ~= 'refund' then
      for j = payer, i do answers[j] = unreadable(damaged) end
    end
  end

  local all = enforced and (quota or not quotas)
  -- How many units it takes of what is left: see Settlement::granted in tallygate/src/call/settlement.rs.
  local granted = at_most
  if at_most then
    local most = 0
    for place = 1, count do
      local mode, known = byte(specs, 13 * place - 10), judged[place]
      if mode == ENFORCE then
        granted = math.min(granted, known.has or known[2])
      elseif mode == QUOTA then
        most = math.max(most, known.has or known[2])
      end
    end
    if quotas then granted = math.min(granted, most) end
  end
  for i = 1, count do
    if reserves then charged[i] = 0 end
    if not answers[i] then
      -- What to take from a state: see Settlement::taking.
      local key, packed, head = KEYS[first + i - 1], ARGV[at + i], 13 * i - 12
      local kind, opens = sub(specs, head, head + 1), KEYS[first + count + i - 1]
      local twin = twins[kind]
      local mode, drains = byte(specs, head + 2, head + 3)
      local fit, remaining, retry_after, reset_after, changed, debt, full = unpack(judged[i])
      local units, fits, has, further = 0, not changed, judged[i].has, mode < FURTHER
      if further then mode = mode + 32 elseif has then payer = i end
      local takes = charges
        and (all or mode == ENFORCE and not fit or mode == QUOTA and enforced)
      if takes and fit then
        units = granted or struct.unpack('<d', packed)
        -- See Settlement::part_of_grant.
        if granted and (has or remaining) < granted then units = mode == QUOTA and 0 or has or remaining end
        if has then
          if not further then rest = units end
          units = math.min(rest, remaining)
          rest = rest - units
        end
        if has or granted then packed = pack('<d', units) .. sub(packed, 9) end
      elseif has then
        packed = pack('<d', 0) .. sub(packed, 9)
      end
      local _
      if units > 0 then
        if aware then before_charge(kind, key, packed, now) end
        _, remaining, retry_after, reset_after, _, _, debt = twin(key, packed, now, 'check')
        if aware then keep(kind, key, packed, now, debt) end
        if reserves then
          charged[i] = units
          local id, ttl = struct.unpack('<c16d', terms, 4)
          reset_after = hold(kind, key, opens, packed, now, reset_after, units, now + ttl, id, sub(terms, 18 + 18 * i, 18 + 18 * i))
        end
        fits = true
      elseif takes and not fit and drains == DRAINS and remaining > 0 then
        units = remaining
        if aware then before_charge(kind, key, packed, now) end
        twin(key, pack('<d', units) .. sub(packed, 9), now, 'check')
        _, remaining, retry_after, reset_after, _, _, debt = twin(key, packed, now, 'peek')
        if aware then keep(kind, key, packed, now, debt) end
        fits = true
      elseif charges and changed then
        _, remaining, retry_after, reset_after, _, _, debt = twin(key, packed, now, 'adopt')
        if aware then keep(kind, key, packed, now, debt) end
        fits = true
      end
      -- A debt that was paid meanwhile may leave a state that has to be adopted.
      if aware and fits then fits = look(kind, key, packed, now) end
      answers[i] = answer(key, packed, fit and 1 or full and 3 or 0, remaining, retry_after, reset_after, units, debt, fits)
      if has and not fit then
        judged[i] = { fit, remaining, reset_after, units, debt, fits }
        if (byte(specs, head + 15) or FURTHER) >= FURTHER then
          -- How long the payers need to regain what is short, after what the call has taken: see wait in tallygate/src/call/fund.rs.
          local short, regained, wait = struct.unpack('<d', ARGV[at + i]), {}, 0
          for j = payer, i do short = short - judged[j][2] end
          for j = payer, i do
            local numbers, left, spec = sub(ARGV[at + j], 9), judged[j][2], 13 * j - 12
            local part = math.min(short, struct.unpack('<d', numbers) - left)
            if part > 0 then
              local _, _, after = twins[sub(specs, spec, spec + 1)](KEYS[first + j - 1], pack('<d', left + part) .. numbers, now, 'peek')
              regained[#regained + 1] = { part, after }
            end
          end
          table.sort(regained, function(one, other) return one[2] < other[2] end)
          for _, part in ipairs(regained) do
            if short > 0 then short, wait = short - part[1], part[2] end
          end
          for j = payer, i do answers[j] = answer(KEYS[first + j - 1], ARGV[at + j], 0, judged[j][2], wait, unpack(judged[j], 3, 6)) end
        end
      end
    end
  end
  if reserves and all then record(terms, specs, first, at, count, charged) end
  local reply = pack('<Bd', all and 1 or 0, now) .. table.concat(answers)
  if request and verb == 'refund' then
    forget(memory, request)
  elseif request and charges and all then
    remember(memory, request, reserves and sub(terms, 4, 19), at, count, reply)
  end
  return reply
end

-- The replies to all calls, in order, each by `decide`.
local function replies_by(decide)
  local replies, first, at = {}, 1, 1
  for i = 1, tonumber(ARGV[1]) do
    local verb, terms, specs = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local count = #specs / 13
    replies[i] = decide(verb, terms, specs, first, at + 3, count)
    first = first + count
    local standing, looks = byte(terms, 1, 2)
    if looks == LOOKS then first = first + count end
    if verb == 'reserve' then first = first + 1 end
    if standing == WITH_ID then first = first + 1 end
    at = at + 3 + count
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
  states, ttls, heads, later, looked, remembered = {}, {}, {}, {}, {}, {}
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
