-- needs: actions, audit, keys, last_message, standing, states
-- A change of pending actions, as a turn or a program makes it (`TurnChange.to_dict` in Python).
--
-- Of the change this part reads the `transition` of one action to another state, which may be
-- absent, and `new_actions`, the list of actions to store.

-- End an action whose worker is gone.
local function end_abandoned(action_id)
  local state = redis.call('HGET', action_key(action_id), 'state')
  if state == 'claimed' then enter(action_id, {'superseded'}) end
  if state == 'started' then enter(action_id, {'unknown'}) end
end

-- Return whether another action occupies the scope of this one, after ending one that is over.
-- `transition`, or nil: the action that it names is about to leave its scope.
local function is_scope_occupied(new_action, transition)
  if not new_action.occupies_scope then return false end
  local other = redis.call('GET', open_action_key(new_action.user))
  if not other or other == new_action.action_id then return false end
  if transition and transition.action_id == other then return false end

  local state, expires_at, started_at, run_by_seq = unpack(redis.call('HMGET', action_key(other),
    'state', 'expires_at', 'started_at', 'run_by_seq'))
  -- A standing yes covers it, so that it asks nothing. The turn that runs it needs no scope.
  if state == 'armed' and run_by_seq then return false end
  local is_expired = state == 'shown' and now() >= (tonumber(expires_at) or 0)
  if is_expired then
    enter(other, {'expired'})
    return false
  end

  local is_under_work = state == 'claimed' or state == 'started'
  if is_under_work and now() - (tonumber(started_at) or 0) > STALE_MS then
    end_abandoned(other)
    return false
  end
  return OPEN_STATES[state or ''] or false
end

-- Return whether the result of a step came in after the worker read the plan. Then its answer about
-- the plan is not true any more, and its call is refused, also when it is repeated because its
-- answer was lost. The next call comes from a worker that has read the plan again. `late_result`:
-- the field of the plan: 'new', or the digest of the call that was refused.
local function misses_late_result(action_id, late_result)
  if not late_result then return false end
  local call = redis.sha1hex(ARGV[1])
  if late_result == 'new' then
    redis.call('HSET', action_key(action_id), 'late_result', call)
    return true
  end
  return late_result == call
end

-- Return whether an action in this state may make a transition.
local function is_possible(transition, state, decided_by_event)
  -- The call is repeated because its answer was lost: the transition was made already.
  if state == transition.to and decided_by_event == transition.decided_by_event then return true end

  -- An action that expired meanwhile had no effect, so it may be called cancelled or expired.
  if state == 'expired' and (transition.to == 'cancelled' or transition.to == 'expired') then
    return true
  end

  for _, from in ipairs(transition.from) do
    if state == from then return true end
  end
  return false
end

-- Return why a change is impossible: 'state' (the action is in none of the expected states) or
-- 'exists' (another action occupies the scope). Return nil for a possible change.
local function refusal_of(change)
  local transition = change.transition
  if transition then
    local action_id = transition.action_id
    local state, decided_by_event, late_result =
      unpack(redis.call('HMGET', action_key(action_id), 'state', 'decided_by_event', 'late_result'))
    if misses_late_result(action_id, late_result) then return 'state' end
    if not is_possible(transition, state, decided_by_event) then return 'state' end
  end

  for _, new_action in ipairs(change.new_actions) do
    if is_scope_occupied(new_action, transition) then return 'exists' end
  end
end

-- Store an action and return when its window closes, in Unix milliseconds, 0 if it is not open yet.
-- The action is armed until its question is delivered. `at_once`: it is shown now, because no
-- worker delivers the question.
local function store_action(new_action, at_once)
  local key = action_key(new_action.action_id)
  local is_repeated_call = redis.call('EXISTS', key) == 1
  if is_repeated_call then return redis.call('HGET', key, 'expires_at') end

  local states = {'armed'}
  local expires_at = 0
  if at_once then
    states = {'armed', 'shown'}
    expires_at = now() + new_action.ttl_ms
  end

  redis.call('HSET', key,
    'record', new_action.record, 'mac', new_action.mac, 'kind', new_action.kind,
    'digest', new_action.digest, 'ttl_ms', new_action.ttl_ms, 'user', new_action.user,
    'state', states[#states], 'expires_at', expires_at, 'last_seen_seq', 0)
  if at_once then redis.call('HSET', key, 'shown_at', now()) end
  for name, value in pairs(new_action.optional_fields) do
    redis.call('HSET', key, name, value)
  end
  -- Other people may have days to decide.
  redis.call('PEXPIRE', key, KEEP_ACTION_MS + new_action.ttl_ms)
  append_audit(new_action.action_id, states, '', new_action.mac)

  if not new_action.occupies_scope then return expires_at end
  redis.call('SET', open_action_key(new_action.user), new_action.action_id, 'PX', KEEP_ACTION_MS)
  if at_once and redis.call('EXISTS', conversation_key) == 1 then
    follow_question()
    set_last_question(new_action.action_id, '0')
  end
  return expires_at
end

-- Make a transition. An action that is in its new state already, or that expired meanwhile, keeps
-- its state and only gets the text.
local function apply_transition(transition)
  local action_id = transition.action_id
  local key = action_key(action_id)
  local state = redis.call('HGET', key, 'state')

  local fields = {}
  if transition.outcome_text ~= '' then fields = {'outcome_text', transition.outcome_text} end
  if state ~= transition.to and state ~= 'expired' then
    if transition.decided_by_event then
      fields[#fields + 1] = 'decided_by_event'
      fields[#fields + 1] = transition.decided_by_event
    end
    if transition.decision then
      fields[#fields + 1] = 'decision'
      fields[#fields + 1] = transition.decision
    end
    enter(action_id, {transition.to}, unpack(fields))
  elseif #fields > 0 then
    redis.call('HSET', key, unpack(fields))
  end

  if transition.unclear_answer then
    local answers = transition.unclear_answer
    local earlier = redis.call('HGET', key, 'unclear_answers')
    if earlier then answers = earlier .. ' ' .. answers end
    redis.call('HSET', key, 'unclear_answers', answers)
  end
end

-- Add the vote of another person to an action, behind those before, and to the audit log. Each vote
-- is one line. A vote counts while the action waits: one that comes later is not stored.
local function add_vote(action_id, vote, voted_by_event)
  local key = action_key(action_id)
  local state, mac, votes = unpack(redis.call('HMGET', key, 'state', 'mac', 'votes'))
  if state ~= 'shown' then return end
  -- The call is repeated because its answer was lost, or the turn is done again.
  if votes and string.find('\n' .. votes .. '\n', '\n' .. vote .. '\n', 1, true) then return end

  if votes then vote = votes .. '\n' .. vote end
  redis.call('HSET', key, 'votes', vote)
  append_audit(action_id, {'voted'}, voted_by_event, mac or '')
end

-- Note who was asked about an action that other people decide, or add the vote of one of them.
local function apply_request_change(request_change)
  local action_id = request_change.action_id
  local key = action_key(action_id)
  if redis.call('EXISTS', key) == 0 then return end

  if request_change.requests then redis.call('HSET', key, 'requests', request_change.requests) end
  if request_change.vote then
    add_vote(action_id, request_change.vote, request_change.voted_by_event)
  end
end

-- Make a change that `refusal_of` found possible. `at_once`: see `store_action`.
local function apply_change(change, at_once)
  if change.revokes then revoke_standing(change.revokes.user, change.revokes.ids) end
  if change.transition then apply_transition(change.transition) end
  if change.request_change then apply_request_change(change.request_change) end
  for _, new_action in ipairs(change.new_actions) do store_action(new_action, at_once) end
end
