-- needs: keys
-- The timers of a conversation: replies that are sent at a later time.

-- A sorted set: when each timer is due, in Unix milliseconds.
local timers = shard .. ':timers:' .. conversation

-- A hash: what each timer does, as JSON. Its fields: `id`, `at`, `reply` (the outbox entry to
-- send), and for a timer about a question `asks` (the action whose question must still be open),
-- `ends` (the action that expires) and `ending` (the outbox entry that replaces the question).
local timer = shard .. ':timer:' .. conversation

-- Set a timer, or replace the one with this id. All timers are kept for as long as the last one
-- needs.
local function set_timer(id, at, what)
  redis.call('HSET', timer, id, what)
  redis.call('ZADD', timers, at, id)

  local last_at = redis.call('ZRANGE', timers, -1, -1, 'WITHSCORES')[2]
  local ttl = math.max(0, last_at - now()) + KEEP_CONVERSATION_MS
  for _, key in ipairs({timers, timer}) do
    redis.call('PEXPIRE', key, ttl)
  end
end

local function drop_timer(id)
  redis.call('ZREM', timers, id)
  redis.call('HDEL', timer, id)
end

-- Return when the next timer is due, as text, nil if there is none.
local function next_timer()
  return redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2]
end

-- No work is left: the conversation needs a worker when its next timer is due, or not at all.
local function wait_for_timer()
  local at = next_timer()
  if at then
    redis.call('ZADD', due, at, conversation)
  else
    redis.call('ZREM', due, conversation)
  end
end
