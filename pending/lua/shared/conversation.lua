-- needs: keys
-- The record of a conversation: its numbers, how long it is kept, and its lease.
--
-- The lease is the right of one worker to work on the conversation. `epoch` is its fencing number,
-- which grows with each new lease, and `token` the name that the worker gave it.
--
-- args:
--   epoch, token   of the worker's lease

-- Return a field of the record as a number, 0 if it is not set.
local function conversation_number(field)
  return tonumber(redis.call('HGET', conversation_key, field) or '0')
end

-- Raise a field of the record by one and return it. After a loss of data, the numbers of a new
-- conversation begin above all that were ever given out (the shard's `floor`).
local function next_number(field)
  local number = redis.call('HINCRBY', conversation_key, field, 1)
  if number > 1 then return number end

  local floor = redis.call('GET', shard .. ':floor')
  if not floor then return number end
  return redis.call('HINCRBY', conversation_key, field, floor)
end

-- Return whether the user wants no messages, and has not written since.
local function has_opted_out()
  local last_turn_then = redis.call('HGET', conversation_key, 'opted_out')
  return last_turn_then and tonumber(last_turn_then) == conversation_number('last_turn')
end

-- Keep the conversation for its full time from now on.
local function keep_conversation()
  local ttl = KEEP_CONVERSATION_MS
  if has_opted_out() then ttl = KEEP_OPT_OUT_MS end
  redis.call('PEXPIRE', conversation_key, ttl)
  for _, key in ipairs({inbox, outbox}) do
    redis.call('PEXPIRE', key, KEEP_CONVERSATION_MS)
  end
end

-- Return whether a turn or a reply waits.
local function has_work()
  return redis.call('LLEN', inbox) + redis.call('LLEN', outbox) > 0
end

-- Return whether this worker holds the lease. Without it a worker may change nothing.
local function holds_lease()
  local epoch, token = unpack(redis.call('HMGET', conversation_key, 'epoch', 'token'))
  return args.epoch == tonumber(epoch or '0') and args.token == token
end

-- Return whether this worker's last call released the lease: then the call is repeated because its
-- answer was lost.
local function has_released()
  return redis.call('HGET', conversation_key, 'released_by') == args.epoch .. ':' .. args.token
end
