-- needs: actions, states
-- Decide, without a lease, about the action that waits in a scope: all checks and the step itself, in one round trip.
-- args: user (the id of the scope), intent ('confirm', 'cancel' or 'ignore'), decided_by_event (a random word of the
-- caller: a decision that is sent again has the same), expected_kind, expected_id and expected_digest ('' for any),
-- ignore_ms (what an 'ignore' leaves of the window, in milliseconds), code (typed with a yes, '' for none).
-- Returns JSON: `verdict` (`DecisionVerdict` in Python) and `action`, after the step; no action where nothing waits.
-- A yes is claimed and started at once. The event is the id of the attempt, too. The caller verifies the action that it
-- gets before it runs it.
local intent, event = args.intent, args.decided_by_event

-- The answer is stored for as long as the client may ask again: by then another action may wait here.
local answer_key = shard .. ':decided:' .. event

local earlier_answer, action_id = unpack(redis.call('MGET', answer_key, open_action_key(args.user)))
if earlier_answer then
  local verdict, decided_id = string.match(earlier_answer, '^(%S+) (.*)$')
  return cjson.encode({verdict = verdict, action = load_action(decided_id)})
end

local function nothing_waits()
  redis.call('SET', answer_key, 'gone ', 'PX', ASKED_AGAIN_MS)
  return cjson.encode({verdict = 'gone'})
end

local action = action_id and load_action(action_id)
if not action then return nothing_waits() end

local key = action_key(action_id)
local kind, digest, code, steps, ttl_ms = unpack(redis.call('HMGET', key, 'kind', 'digest', 'code', 'steps', 'ttl_ms'))
local expires_at = tonumber(action.expires_at or '') or 0
local started_at = tonumber(action.started_at or '') or 0

local function answer(verdict)
  redis.call('SET', answer_key, verdict .. ' ' .. action_id, 'PX', ASKED_AGAIN_MS)
  return cjson.encode({verdict = verdict, action = action})
end

-- End the action, and answer.
local function end_as(end_state, verdict)
  redis.call('HSET', key, 'state', end_state, 'decided_by_event', event)
  action.state, action.decided_by_event = end_state, event
  entered(action_id, {end_state}, event, action.mac, steps)
  return answer(verdict)
end

local is_another = (args.expected_kind ~= '' and args.expected_kind ~= kind)
  or (args.expected_id ~= '' and args.expected_id ~= action_id)
local is_changed = args.expected_digest ~= '' and args.expected_digest ~= digest
local lacks_code = intent == 'confirm' and args.code ~= (code or '')

if action.state == 'claimed' or action.state == 'started' then
  if now() - started_at <= STALE_MS then return nothing_waits() end
  -- The process that began it is gone.
  return answer((is_another or is_changed or lacks_code) and 'mismatch' or 'stale')
end

if action.state ~= 'shown' and action.state ~= 'armed' then return nothing_waits() end
if action.state == 'shown' and now() >= expires_at then return end_as('expired', 'expired') end
if is_another or lacks_code then return answer('mismatch') end
if action.state == 'armed' and intent == 'confirm' then return answer('early') end
if is_changed then return end_as('cancelled', 'changed') end
if intent == 'cancel' then return end_as('cancelled', 'cancelled') end

if intent == 'ignore' then
  local sooner = now() + args.ignore_ms
  if action.state == 'shown' and sooner < expires_at then  -- the window gets shorter, never longer
    local shorter_ttl = (tonumber(ttl_ms) or 0) - (expires_at - sooner)
    redis.call('HSET', key, 'expires_at', sooner, 'ttl_ms', shorter_ttl)
    action.expires_at = sooner
  end
  return answer('ignored')
end

redis.call('HSET', key, 'state', 'started', 'decided_by_event', event, 'attempt_id', event, 'attempts', 1,
  'started_at', now())
action.state, action.decided_by_event, action.attempt_id, action.started_at = 'started', event, event, now()
entered(action_id, {'claimed', 'started'}, event, action.mac, steps)
return answer('mine')
