-- needs: actions, channel, conversation, inbox, keys, outbox, timers
-- Postpone the first reply of the outbox, and release the lease until then.
--
-- args:
--   epoch, token   of the worker's lease
--   number         of the reply
--   delay_ms       how long the reply waits, in milliseconds
--   why            why it waits, see below
--   reason         for operators, why the reply is held, else ''
-- why:
--   tried          the send failed
--   suspect        the send may have arrived
--   limited        the platform asks the whole channel to wait
--   down           the platform does not accept the channel: all of it waits; not an attempt
--   rate_limited   the slot is later; not an attempt
--   held           the user must write first; an attempt if a turn waits already
-- returns: 'ok', 'lost' (the lease; a repeated call gets this answer, too) or 'gone' (another reply
--   is the first one).
if not holds_lease() then return 'lost' end
if first_reply_number() ~= tostring(args.number) then return 'gone' end

-- Keep an action with its steps and its scope for as long as a reply may be held.
local function keep_action(action_id)
  local user, steps = unpack(redis.call('HMGET', action_key(action_id), 'user', 'steps'))
  local keys = {action_key(action_id)}
  if user and redis.call('GET', open_action_key(user)) == action_id then
    keys[2] = open_action_key(user)
  end
  for step in string.gmatch(steps or '', '%S+') do keys[#keys + 1] = action_key(step) end
  for _, key in ipairs(keys) do redis.call('PEXPIRE', key, KEEP_HELD_MS + KEEP_ACTION_MS) end
end

-- Keep the conversation, and each action that a waiting reply asks about: after a long wait a yes
-- must still find its question.
local function keep_waiting_replies()
  keep_conversation()
  for _, entry in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
    local reply = parse_reply(entry)
    if reply.role == 'question' then keep_action(reply.action_id) end
  end
end

-- Hold the first reply until the user writes, at most KEEP_HELD_MS. The conversation is due then,
-- or with a timer; at once if a turn waits, which is no message of the user.
local function hold()
  local since = now()
  local reason = args.reason
  -- A reply that is held already keeps its time and its reason.
  local earlier = current_hold()
  if earlier then
    since = earlier.since
    reason = earlier.reason
  end
  local held_reply = cjson.encode({
    number = first_reply_number(),
    last_turn = conversation_number('last_turn'),
    since = since,
    reason = reason,
  })
  redis.call('HSET', conversation_key, 'held_reply', held_reply, 'reply_attempts', 0,
    'token', '', 'lease_until', 0, 'turn_attempts', '')
  redis.call('HDEL', conversation_key, 'sending', 'slot')
  redis.call('ZADD', held_conversations, since, conversation)
  redis.call('PEXPIRE', held_conversations, KEEP_CONVERSATION_MS)

  local next_at = since + KEEP_HELD_MS
  if next_timer() then next_at = math.min(next_at, tonumber(next_timer())) end
  if redis.call('LLEN', inbox) > 0 then next_at = now() end
  redis.call('ZADD', due, next_at, conversation)
  keep_waiting_replies()
end

if args.why == 'held' and not has_message() then
  hold()
  return 'ok'
end

-- The reply is not being sent any more, so it is not taken for one that may have arrived.
redis.call('HDEL', conversation_key, 'sending')
if args.why == 'suspect' then
  redis.call('HSET', conversation_key, 'suspect:' .. args.number, 1)
end

-- A reply that only waited for its slot keeps the slot.
if args.why ~= 'rate_limited' then redis.call('HDEL', conversation_key, 'slot') end

local is_attempt = args.why ~= 'rate_limited' and args.why ~= 'down'
if is_attempt then redis.call('HINCRBY', conversation_key, 'reply_attempts', 1) end

-- The reply keeps its place in line: its slot is the first after the wait.
local later = now() + args.delay_ms
if args.why == 'limited' or args.why == 'down' then
  local slot = silence_channel(later)
  redis.call('HSET', conversation_key, 'slot', string.format('%s:%d', args.number, slot))
end

if args.delay_ms >= SOON_MS then keep_waiting_replies() end

-- Park the conversation: a wake-up that is still in the queue must not cut the wait short.
redis.call('HSET', conversation_key, 'token', 'parked', 'lease_until', later)
redis.call('ZADD', due, later, conversation)
return 'ok'
