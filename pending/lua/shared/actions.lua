-- The stored pending actions: their keys, and how they are read.
--
-- A pending action is a tool call that waits for its user's yes. The `user` of an action is the id
-- of its scope: one person in one conversation. At most one action occupies a scope, which means
-- that a plain yes of that person answers it.

-- A hash: the action, with the state that it is in.
local function action_key(action_id)
  return shard .. ':pending:' .. action_id
end

-- A string: the id of the action that occupies the scope of a user.
local function open_action_key(user)
  return shard .. ':open_action:' .. conversation .. ':' .. user
end

-- A list: the ids of the actions that a user started lately, the last one first.
local function started_actions_key(user)
  return shard .. ':started_actions:' .. conversation .. ':' .. user
end

-- A list: the ids of the requests that a user got about other users' actions, the last one first.
local function received_requests_key(user)
  return shard .. ':received_requests:' .. conversation .. ':' .. user
end

-- A sorted set of the whole shard: the actions about which other people are asked, and since when.
local waiting_for_others = shard .. ':waiting_for_others'

-- The fields of an action that Python reads (`StoredAction`). Times are in Unix milliseconds,
-- except `written_at`, which is in microseconds.
local ACTION_FIELDS = {
  'record', 'mac', 'state', 'expires_at', 'decided_by_event', 'attempt_id', 'outcome_text',
  'result', 'output', 'last_seen_seq', 'started_at', 'question_message', 'question_messages',
  'written_at', 'trace', 'followed_after_seq', 'unclear_answers', 'decision', 'shown_at', 'votes',
  'requests',
}

-- Return an action as a table of its fields, with `action_id` and `loaded_at` (this server's time).
-- A field that was never set is left out. Return nil for an action that is not stored.
local function load_action(action_id)
  local values = redis.call('HMGET', action_key(action_id), unpack(ACTION_FIELDS))
  if not values[1] then return nil end

  local action = {action_id = action_id, loaded_at = now()}
  for at, name in ipairs(ACTION_FIELDS) do
    -- Redis answers `false` for a field that is not set, and JSON would keep it.
    action[name] = values[at] or nil
  end
  return action
end

-- Return an action as JSON, '' for one that is not stored.
local function action_json(action_id)
  local action = load_action(action_id)
  if not action then return '' end
  return cjson.encode(action)
end
