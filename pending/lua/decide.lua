-- needs: actions, states
-- Decide, without a lease, on what a scope waits for: all checks, then the step, in one round trip.
-- args: user, intent, by (the deciding act), expected_kind, expected_id and expected_digest ('' for any), ignore_ms
-- (what an 'ignore' leaves of the window), code (typed with a yes).
-- A yes is claimed and started at once, the act being its attempt too; the caller verifies what is returned before it
-- runs it.
local intent, act = args.intent, args.decided_by_event
local decided = shard .. ':decided:' .. act
local before, action_id = unpack(redis.call('MGET', decided, open_action_key(args.user)))
if before then
  local verdict, decided_on = string.match(before, '^(%S+) (.*)$')
  return {verdict, decided_on ~= '' and action_row(decided_on) or {}}
end

local STATE, EXPIRES, BY, ATTEMPT, BEGUN, KNOWN = 3, 4, 5, 6, 10, 17
local fields = action_id and fields_of(action_id, 'kind', 'digest', 'code', 'steps', 'ttl_ms') or {}

-- The answer is stored for as long as the client may ask again: by then another action may wait here.
local function gone()
  redis.call('SET', decided, 'gone ', 'PX', ASKED_AGAIN_MS)
  return {'gone', {}}
end

local function answer(verdict)
  redis.call('SET', decided, verdict .. ' ' .. action_id, 'PX', ASKED_AGAIN_MS)
  return {verdict, {action_id, now(), unpack(fields, 1, KNOWN)}}
end

local mac, kind, digest, code, steps, ttl = fields[2], unpack(fields, KNOWN + 1, KNOWN + 5)
local state, expires, begun = fields[STATE], tonumber(fields[EXPIRES] or 0), tonumber(fields[BEGUN] or 0)

-- End the action, and answer.
local function end_as(end_state, verdict)
  redis.call('HSET', action_key(action_id), 'state', end_state, 'decided_by_event', act)
  fields[STATE], fields[BY] = end_state, act
  entered(action_id, {end_state}, act, mac, steps)
  return answer(verdict)
end

local another = (args.expected_kind ~= '' and args.expected_kind ~= kind)
  or (args.expected_id ~= '' and args.expected_id ~= action_id)
local changed = args.expected_digest ~= '' and args.expected_digest ~= digest
local uncoded = intent == 'confirm' and args.code ~= (code or '')
if state == 'claimed' or state == 'started' then
  if now() - (begun or 0) <= STALE_MS then return gone() end
  return answer((another or changed or uncoded) and 'mismatch' or 'stale')  -- the process that began it is gone
end
if state ~= 'shown' and state ~= 'armed' then return gone() end
if state == 'shown' and now() >= (expires or 0) then return end_as('expired', 'expired') end
if another or uncoded then return answer('mismatch') end
if state == 'armed' and intent == 'confirm' then return answer('early') end
if changed then return end_as('cancelled', 'changed') end
if intent == 'cancel' then return end_as('cancelled', 'cancelled') end
if intent == 'ignore' then
  local sooner = now() + args.ignore_ms
  if state == 'shown' and sooner < expires then  -- the window gets shorter, never longer
    redis.call('HSET', action_key(action_id), 'expires_at', sooner, 'ttl_ms', (tonumber(ttl) or 0) - (expires - sooner))
    fields[EXPIRES] = sooner
  end
  return answer('ignored')
end
redis.call('HSET', action_key(action_id), 'state', 'started', 'decided_by_event', act, 'attempt_id', act, 'attempts', 1, 'started_at', now())
fields[STATE], fields[BY], fields[ATTEMPT], fields[BEGUN] = 'started', act, act, now()
entered(action_id, {'claimed', 'started'}, act, mac, steps)
return answer('mine')
