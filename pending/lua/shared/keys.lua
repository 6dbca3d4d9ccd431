-- The keys of a conversation. A shard lives on one Redis primary and never on Redis Cluster (RQ does not run there), so the scripts
-- build their keys.
local conversation_key = shard .. ':conversation:' .. conversation        -- hash: the conversation's numbers, lease and marks
local inbox = shard .. ':inbox:' .. conversation         -- list: the turns that wait
local outbox = shard .. ':outbox:' .. conversation       -- list: the replies that wait
local journal = shard .. ':journal:' .. conversation  -- list: the journal of the first turn
local turn_records = shard .. ':turn_records:' .. conversation  -- hash: how the last turns were turn_records, for `sayso trace`
local due = shard .. ':due'                           -- sorted set: when a conversation of the shard needs a worker

-- The hash of what the users of this conversation were told after a loss of data.
local function loss_key()
  return shard .. ':loss:' .. conversation
end

local function history_key(user)
  return shard .. ':history:' .. conversation .. ':' .. user
end
