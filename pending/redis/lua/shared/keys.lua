-- Names of keys. A shard lives on one Redis primary and never on Redis Cluster (RQ does not run there), so the scripts
-- build their keys.
local lane = shard .. ':lane:' .. conversation        -- hash: the conversation's numbers, lease and marks
local inbox = shard .. ':in:' .. conversation         -- list: the turns that wait
local outbox = shard .. ':out:' .. conversation       -- list: the replies that wait
local journal = shard .. ':journal:' .. conversation  -- list: the journal of the first turn
local due = shard .. ':due'                           -- sorted set: when a conversation of the shard needs a worker

-- The hash of a pending action.
local function action_key(pid)
  return shard .. ':pending:' .. pid
end

-- The id of the action that occupies a user's scope.
local function live_key(user)
  return shard .. ':live:' .. conversation .. ':' .. user
end

local function history_key(user)
  return shard .. ':history:' .. conversation .. ':' .. user
end
