-- Pending actions: their keys, and how they are read.

-- The hash of a pending action.
local function action_key(pid)
  return shard .. ':pending:' .. pid
end

-- The id of the action that occupies a user's scope.
local function live_key(user)
  return shard .. ':live:' .. conversation .. ':' .. user
end

-- The list of the actions that a user of this conversation started lately, the last one first.
local function recent_key(user)
  return shard .. ':recent:' .. conversation .. ':' .. user
end

-- Return the fields of an action in the order in which Python reads them, then those of the further names.
local function fields_of(pid, ...)
  return redis.call('HMGET', action_key(pid), 'rec', 'mac', 'state', 'expires', 'by', 'attempt', 'told', 'result',
    'seen', 'begun', 'prompt', 'prompts', 'written', 'trace', 'followed', 'output', 'unclear', ...)
end

-- Return an action as Python reads it: its id, this server's time, and its fields. Empty when there is none.
local function action_row(pid)
  local fields = fields_of(pid)
  return fields[1] and {pid, now(), unpack(fields)} or {}
end
