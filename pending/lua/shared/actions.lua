-- Pending actions: their keys, and how they are read.

-- The hash of a pending action.
local function action_key(action_id)
  return shard .. ':pending:' .. action_id
end

-- The id of the action that occupies a user's scope.
local function open_action_key(user)
  return shard .. ':open_action:' .. conversation .. ':' .. user
end

-- The list of the actions that a user of this conversation started lately, the last one first.
local function started_actions_key(user)
  return shard .. ':started_actions:' .. conversation .. ':' .. user
end

-- The fields of an action that Python reads (`StoredAction`). Times are in Unix milliseconds, `written_at` in
-- microseconds. A field that was never set is left out.
local ACTION_FIELDS = {
  'record', 'mac', 'state', 'expires_at', 'decided_by_event', 'attempt_id', 'outcome_text', 'result', 'output',
  'last_seen_seq', 'started_at', 'question_message', 'question_messages', 'written_at', 'trace', 'followed_after_seq',
  'unclear_answers',
}

-- Return an action by the names of its fields, with its id and `loaded_at`, this server's time. Nil when there is none.
local function load_action(action_id)
  local values = redis.call('HMGET', action_key(action_id), unpack(ACTION_FIELDS))
  if not values[1] then return nil end

  local action = {action_id = action_id, loaded_at = now()}
  for at, name in ipairs(ACTION_FIELDS) do
    action[name] = values[at] or nil
  end
  return action
end

-- Return an action as JSON, '' when there is none.
local function action_json(action_id)
  local action = load_action(action_id)
  return action and cjson.encode(action) or ''
end
