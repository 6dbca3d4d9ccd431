-- needs: keys
-- Timers of a conversation.
local timers = shard .. ':timers:' .. conversation  -- sorted set: when each timer is due
local timer = shard .. ':timer:' .. conversation    -- hash: what each timer sends, as JSON

-- Set a timer, or replace the one with this id. All timers are kept for as long as the last one needs.
local function set_timer(id, at, what)
  redis.call('HSET', timer, id, what)
  redis.call('ZADD', timers, at, id)
  local last = redis.call('ZRANGE', timers, -1, -1, 'WITHSCORES')[2]
  for _, key in ipairs({timers, timer}) do
    redis.call('PEXPIRE', key, math.max(0, last - now()) + KEEP_CONVERSATION_MS)
  end
end

local function drop_timer(id)
  redis.call('ZREM', timers, id)
  redis.call('HDEL', timer, id)
end

-- Return when the next timer is due, nil when there is none.
local function next_timer()
  return redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2]
end

-- With no work left, the conversation is due when its next timer is.
local function wait_for_timer()
  local at = next_timer()
  if at then redis.call('ZADD', due, at, conversation) else redis.call('ZREM', due, conversation) end
end
