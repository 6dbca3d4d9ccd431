-- needs: actions, states
-- Decide, without a lease, about the action that waits in a scope: all checks and the step itself.
--
-- A yes is claimed and started at once. The caller verifies the action that it gets before it runs
-- it.
--
-- args:
--   user               the id of the scope
--   intent             'confirm', 'cancel' or 'ignore'
--   decided_by_event   a random word of the caller, the same if the decision is sent again; also
--                      the id of the attempt
--   expected_kind, expected_id, expected_digest   what the action must be; '' for any
--   ignore_ms          what an 'ignore' leaves of the window, in milliseconds
--   code               typed with a yes, '' for none
--   record             `DecisionRecord.to_json` in Python, stored if this confirms or cancels the
--                      action; absent if there is none
-- returns: JSON with `verdict` (`DecisionVerdict` in Python) and `action` (after the step; absent
--   if nothing waits).
local intent = args.intent
local event = args.decided_by_event

-- The answer is stored for as long as the client may ask again, as "verdict action_id". By then
-- another action may wait here.
local answer_key = shard .. ':decided:' .. event
local earlier_answer, action_id =
  unpack(redis.call('MGET', answer_key, open_action_key(args.user)))
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
local kind, digest, code, steps, ttl_ms =
  unpack(redis.call('HMGET', key, 'kind', 'digest', 'code', 'steps', 'ttl_ms'))
local expires_at = tonumber(action.expires_at or '') or 0
local started_at = tonumber(action.started_at or '') or 0

local function answer(verdict)
  redis.call('SET', answer_key, verdict .. ' ' .. action_id, 'PX', ASKED_AGAIN_MS)
  return cjson.encode({verdict = verdict, action = action})
end

-- End the action, and answer.
local function end_as(end_state, verdict)
  redis.call('HSET', key, 'state', end_state, 'decided_by_event', event)
  action.state = end_state
  action.decided_by_event = event
  entered(action_id, {end_state}, event, action.mac, steps)
  return answer(verdict)
end

-- Let the window close sooner. It gets shorter, never longer.
local function shorten_window()
  local sooner = now() + args.ignore_ms
  if action.state ~= 'shown' or sooner >= expires_at then return end
  -- The window is shorter by as much, so the time at which it opened stays the same.
  local shorter_ttl_ms = (tonumber(ttl_ms) or 0) - (expires_at - sooner)
  redis.call('HSET', key, 'expires_at', sooner, 'ttl_ms', shorter_ttl_ms)
  action.expires_at = sooner
end

-- Store how the action is decided.
local function store_record()
  if not args.record then return end
  redis.call('HSET', key, 'decision', args.record)
  action.decision = args.record
end

-- Claim the action and start it, and answer.
local function start()
  redis.call('HSET', key, 'state', 'started', 'decided_by_event', event, 'attempt_id', event,
    'attempts', 1, 'started_at', now())
  action.state = 'started'
  action.decided_by_event = event
  action.attempt_id = event
  action.started_at = now()
  entered(action_id, {'claimed', 'started'}, event, action.mac, steps)
  return answer('mine')
end

local is_another = (args.expected_kind ~= '' and args.expected_kind ~= kind)
  or (args.expected_id ~= '' and args.expected_id ~= action_id)
local is_changed = args.expected_digest ~= '' and args.expected_digest ~= digest
local lacks_code = intent == 'confirm' and args.code ~= (code or '')

-- Another process runs the action, or is gone.
if action.state == 'claimed' or action.state == 'started' then
  if now() - started_at <= STALE_MS then return nothing_waits() end
  if is_another or is_changed or lacks_code then return answer('mismatch') end
  return answer('stale')
end

-- The order matters: an expired action is over whatever was expected, and only the action that the
-- caller means may be cancelled because it changed.
if action.state ~= 'shown' and action.state ~= 'armed' then return nothing_waits() end
if action.state == 'shown' and now() >= expires_at then return end_as('expired', 'expired') end
if is_another or lacks_code then return answer('mismatch') end
if action.state == 'armed' and intent == 'confirm' then return answer('early') end
if is_changed then return end_as('cancelled', 'changed') end
if intent == 'cancel' then
  store_record()
  return end_as('cancelled', 'cancelled')
end

if intent == 'ignore' then
  shorten_window()
  return answer('ignored')
end
store_record()
return start()
