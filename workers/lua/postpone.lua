-- needs: actions, channel, conversation, keys, outbox, timers
-- Postpone the first reply of the outbox, and release the lease until then.
-- args: epoch and token (of the lease), number (of the reply), delay_ms (how long the reply waits, in milliseconds), why
-- (see below), reason (for operators why it is held; '' otherwise).
-- Returns 'ok', 'lost' (the lease; a repeated call is answered so, too) or 'gone' (another reply is the first one).
-- Why:
--   tried         the send failed
--   suspect       the send may have arrived
--   limited       the platform asks the whole channel to wait
--   down          the platform does not accept the channel: all of it waits, and nothing counts as an attempt
--   rate_limited  the slot is later; not an attempt
--   held          the user must write first; an attempt if a turn waits already
if not holds_lease() then return 'lost' end
local head = redis.call('LINDEX', outbox, 0)
if tonumber(string.match(head or '', '^%d+')) ~= args.number then return 'gone' end

-- Keep the conversation, and each action that a waiting reply asks about, with its steps and its scope.
local function keep_waiting_replies()
  keep_conversation()
  for _, waiting in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
    local action_id = string.match(waiting, '^%d+ ([^+= ]%S*) ')
    if action_id and action_id ~= '-' then
      local user, steps = unpack(redis.call('HMGET', action_key(action_id), 'user', 'steps'))
      local keys = {action_key(action_id)}
      if user and redis.call('GET', open_action_key(user)) == action_id then
        keys[2] = open_action_key(user)
      end
      for step in string.gmatch(steps or '', '%S+') do keys[#keys + 1] = action_key(step) end
      for _, key in ipairs(keys) do redis.call('PEXPIRE', key, KEEP_HELD_MS + KEEP_ACTION_MS) end
    end
  end
end

-- Hold the first reply until the user writes, at most KEEP_HELD_MS. The conversation is due then, or with a timer.
local function hold()
  local since, first_why = held_since()
  since = since or now()
  local held = table.concat({args.number, conversation_number('last_turn'), since, first_why or args.reason}, ' ')
  redis.call('HSET', conversation_key, 'held_reply', held, 'reply_attempts', 0,
    'token', '', 'lease_until', 0, 'turn_attempts', '')
  redis.call('HDEL', conversation_key, 'sending', 'slot')
  redis.call('ZADD', shard .. ':held', since, conversation)
  redis.call('PEXPIRE', shard .. ':held', KEEP_CONVERSATION_MS)

  local ends = since + KEEP_HELD_MS
  redis.call('ZADD', due, math.min(ends, tonumber(next_timer() or ends)), conversation)
  keep_waiting_replies()
end

if args.why == 'held' and not has_message() then
  hold()
  return 'ok'
end

local later = now() + args.delay_ms
local is_attempt = args.why ~= 'rate_limited' and args.why ~= 'down'
redis.call('HDEL', conversation_key, 'sending')
if args.why ~= 'rate_limited' then redis.call('HDEL', conversation_key, 'slot') end
if is_attempt then redis.call('HINCRBY', conversation_key, 'reply_attempts', 1) end
if args.why == 'suspect' then redis.call('HSET', conversation_key, 'suspect:' .. args.number, 1) end

if args.why == 'limited' or args.why == 'down' then
  -- It keeps its place in line: its slot is the first after the wait.
  redis.call('HSET', conversation_key, 'slot', string.format('%s:%d', args.number, silence_channel(later)))
end

-- After a long wait a yes must still find its question.
if later - now() >= SOON_MS then keep_waiting_replies() end

-- Park the conversation: a wake-up that is still in the queue must not cut the wait short.
redis.call('HSET', conversation_key, 'token', 'parked', 'lease_until', later)
redis.call('ZADD', due, later, conversation)
return 'ok'
