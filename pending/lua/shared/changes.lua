-- needs: actions, keys, last_message, states
-- A change of pending actions (`TurnChange.to_dict` in Python): the `transition` of one action to another state, and
-- `new_actions` to store.

-- End an action whose worker is gone.
local function end_abandoned(action_id)
  local state = redis.call('HGET', action_key(action_id), 'state')
  if state == 'claimed' then enter(action_id, {'superseded'}) end
  if state == 'started' then enter(action_id, {'unknown'}) end
end

-- Return whether another action occupies the scope of this one. `transition` ends the action that it names.
local function is_scope_occupied(new_action, transition)
  local other = new_action.occupies_scope and redis.call('GET', open_action_key(new_action.user))
  if not other or other == new_action.action_id or (transition and transition.action_id == other) then return false end
  local state, expires, begun = unpack(redis.call('HMGET', action_key(other), 'state', 'expires_at', 'started_at'))
  if state == 'shown' and now() >= (tonumber(expires) or 0) then
    enter(other, {'expired'})
    return false
  end
  if (state == 'claimed' or state == 'started') and now() - (tonumber(begun) or 0) > STALE_MS then
    end_abandoned(other)
    return false
  end
  return OPEN_STATES[state or ''] or false
end

-- Return whether the result of a step came in after the worker read the plan: then its answer about the plan is not
-- true. That call is refused, also when it is repeated because its answer was lost. The next call comes from a worker
-- that has read the plan again.
local function misses_late_result(action_id, late_result)
  if not late_result then return false end
  local call = redis.sha1hex(ARGV[1])
  if late_result == 'new' then redis.call('HSET', action_key(action_id), 'late_result', call) end
  return late_result == 'new' or late_result == call
end

-- Return whether an action may make this transition.
local function is_possible(transition, state, decided_by_event)
  -- The call is repeated, because its answer was lost.
  if state == transition.to and decided_by_event == transition.decided_by_event then return true end
  -- An action that expired meanwhile had no effect, so it may be called cancelled or expired.
  if state == 'expired' and (transition.to == 'cancelled' or transition.to == 'expired') then return true end
  for _, from in ipairs(transition.from) do
    if state == from then return true end
  end
  return false
end

-- Return why a change is impossible: 'state' or 'exists'. Return nil when it is possible.
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

-- Store an action: armed until its preview is delivered, or shown `at_once` where nothing is delivered. Return when its
-- window closes.
local function store_action(new_action, at_once)
  local key = action_key(new_action.action_id)
  if redis.call('EXISTS', key) == 1 then return redis.call('HGET', key, 'expires_at') end  -- a repeated call
  local state, expires, events = 'armed', 0, {'armed'}
  if at_once then state, expires, events = 'shown', now() + new_action.ttl_ms, {'armed', 'shown'} end
  local optional_fields = {}
  for name, value in pairs(new_action.optional_fields) do
    optional_fields[#optional_fields + 1] = name
    optional_fields[#optional_fields + 1] = value
  end
  redis.call('HSET', key, 'record', new_action.record, 'mac', new_action.mac, 'kind', new_action.kind, 'digest', new_action.digest, 'ttl_ms', new_action.ttl_ms,
    'user', new_action.user, 'state', state, 'expires_at', expires, 'last_seen_seq', 0, unpack(optional_fields))
  redis.call('PEXPIRE', key, KEEP_ACTION_MS)
  append_audit(new_action.action_id, events, '', new_action.mac)
  if new_action.occupies_scope then redis.call('SET', open_action_key(new_action.user), new_action.action_id, 'PX', KEEP_ACTION_MS) end
  if at_once and new_action.occupies_scope and redis.call('EXISTS', conversation_key) == 1 then
    follow_question()
    set_last_question(new_action.action_id, '0')
  end
  return expires
end

local function apply_change(change, at_once)
  local transition = change.transition
  local state = transition and redis.call('HGET', action_key(transition.action_id), 'state')
  if transition and state ~= transition.to and state ~= 'expired' then
    local fields = transition.decided_by_event and {'decided_by_event', transition.decided_by_event} or {}
    if transition.outcome_text ~= '' then fields[#fields + 1], fields[#fields + 2] = 'outcome_text', transition.outcome_text end
    enter(transition.action_id, {transition.to}, unpack(fields))
  elseif transition and transition.outcome_text ~= '' then
    redis.call('HSET', action_key(transition.action_id), 'outcome_text', transition.outcome_text)
  end
  if transition and transition.unclear_answer then
    local earlier = redis.call('HGET', action_key(transition.action_id), 'unclear_answers')
    redis.call('HSET', action_key(transition.action_id), 'unclear_answers', earlier and earlier .. ' ' .. transition.unclear_answer or transition.unclear_answer)
  end
  for _, new_action in ipairs(change.new_actions) do store_action(new_action, at_once) end
end
