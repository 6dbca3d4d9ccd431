-- needs: actions, audit
-- The states of a pending action: entering one, and what follows from it.

-- Return how an open step ends when its plan ends. A step that was started may have had its effect;
-- all others have had none.
local function end_of_step(step_state, plan_state)
  if step_state == 'started' then return 'unknown' end
  if plan_state == 'expired' or plan_state == 'superseded' then return plan_state end
  return 'cancelled'
end

-- Put an action at the head of the list of those that its user started lately: from now on its
-- effect may have happened, and the same request is answered with that.
local function list_as_started(action_id)
  local user = redis.call('HGET', action_key(action_id), 'user')
  if not user then return end

  local key = started_actions_key(user)
  redis.call('LREM', key, 0, action_id)
  redis.call('LPUSH', key, action_id)
  redis.call('LTRIM', key, 0, MAX_RECENT - 1)
  redis.call('PEXPIRE', key, KEEP_RECENT_MS)
end

-- `enter` sets the state of an action and calls `entered`, which ends the steps of a plan with
-- `enter`.
local enter, entered

-- Do what follows from states that an action entered, one after the other. The caller has stored
-- the last of them. `steps`: the ids of a plan's steps, separated by spaces, nil for no plan.
function entered(action_id, states, decided_by_event, mac, steps)
  local state = states[#states]
  append_audit(action_id, states, decided_by_event or '', mac or '')
  if state ~= 'shown' then redis.call('ZREM', waiting_for_others, action_id) end
  if state == 'started' then list_as_started(action_id) end
  if OPEN_STATES[state] then return end

  -- The action is over: it is kept for a while, and its open steps end with it.
  redis.call('PEXPIRE', action_key(action_id), KEEP_ACTION_MS)
  for step in string.gmatch(steps or '', '%S+') do
    local step_state = redis.call('HGET', action_key(step), 'state') or ''
    if OPEN_STATES[step_state] then
      enter(step, {end_of_step(step_state, state)}, 'decided_by_event', decided_by_event or '')
    end
  end
end

-- Let an action enter these states, one after the other. Further arguments: fields of the action
-- and their new values, in turn.
function enter(action_id, states, ...)
  local key = action_key(action_id)
  redis.call('HSET', key, 'state', states[#states], ...)
  entered(action_id, states, unpack(redis.call('HMGET', key, 'decided_by_event', 'mac', 'steps')))
end
