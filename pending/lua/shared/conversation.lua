-- needs: keys
-- The numbers and the lease of a conversation.
-- args: epoch, token (of the worker's lease).

-- Return a field as a number, 0 when it is not set.
local function conversation_number(field)
  return tonumber(redis.call('HGET', conversation_key, field) or '0')
end

-- Return the next number of a field. After a loss of data, a new conversation begins above all numbers ever given out.
local function next_number(field)
  local n = redis.call('HINCRBY', conversation_key, field, 1)
  local floor = n == 1 and redis.call('GET', shard .. ':floor')
  return floor and redis.call('HINCRBY', conversation_key, field, floor) or n
end

-- Return whether the user wants no messages, and has not written since.
local function has_opted_out()
  local received = redis.call('HGET', conversation_key, 'opted_out')
  return received and tonumber(received) == conversation_number('last_turn')
end

local function keep_conversation()
  redis.call('PEXPIRE', conversation_key, has_opted_out() and KEEP_OPT_OUT_MS or KEEP_CONVERSATION_MS)
  for _, key in ipairs({inbox, outbox}) do
    redis.call('PEXPIRE', key, KEEP_CONVERSATION_MS)
  end
end

local function has_work()
  return redis.call('LLEN', inbox) + redis.call('LLEN', outbox) > 0
end

-- Return whether a turn waits that its person wrote. A turn in which the agent goes on is none: since the decision before
-- it they may have left.
local function has_message()
  for _, entry in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
    if not string.find(entry, '"kind":"continuation"', 1, true) then return true end
  end
  return false
end

-- Return whether this worker holds the lease. Without it a worker may change nothing.
local function holds_lease()
  local current, holder = unpack(redis.call('HMGET', conversation_key, 'epoch', 'token'))
  return args.epoch == tonumber(current or '0') and args.token == holder
end

-- Return whether this worker's last call released the lease: the call is repeated because its answer was lost.
local function has_released()
  return redis.call('HGET', conversation_key, 'released_by') == args.epoch .. ':' .. args.token
end
