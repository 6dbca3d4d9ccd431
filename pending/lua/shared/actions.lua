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

-- Return the fields of an action in the order in which Python reads them, then those of the further names.
local function fields_of(action_id, ...)
  return redis.call('HMGET', action_key(action_id), 'record', 'mac', 'state', 'expires_at', 'decided_by_event', 'attempt_id', 'outcome_text', 'result',
    'last_seen_seq', 'started_at', 'question_message', 'question_messages', 'written_at', 'trace', 'followed_after_seq', 'output', 'unclear_answers', ...)
end

-- Return an action as Python reads it: its id, this server's time, and its fields. Empty when there is none.
local function action_row(action_id)
  local fields = fields_of(action_id)
  return fields[1] and {action_id, now(), unpack(fields)} or {}
end
