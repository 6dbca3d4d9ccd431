-- The keys of one conversation. All keys of a shard have the same hash tag, so they are on one node
-- of a Redis Cluster, and a script may build their names itself.

-- A hash: the conversation's record, which holds its numbers, its lease and its marks.
local conversation_key = shard .. ':conversation:' .. conversation

-- Lists: the turns that wait, the replies that wait, and the journal of the first turn.
local inbox = shard .. ':inbox:' .. conversation
local outbox = shard .. ':outbox:' .. conversation
local journal = shard .. ':journal:' .. conversation

-- A hash: how the last turns were answered, for `sayso trace`.
local turn_records = shard .. ':turn_records:' .. conversation

-- A sorted set of the whole shard: when each conversation needs a worker, in Unix milliseconds.
local due = shard .. ':due'

-- A string: the number of the turn that came with an event. It is stored for as long as a platform
-- may send the event again. `event` is the digest of the event's id.
local function event_key(event)
  return shard .. ':event:' .. conversation .. ':' .. event
end

-- A hash: what the users of this conversation were told after a loss of data.
local function loss_key()
  return shard .. ':loss:' .. conversation
end

-- A string: the history of one user in this conversation, as JSON.
local function history_key(user)
  return shard .. ':history:' .. conversation .. ':' .. user
end
