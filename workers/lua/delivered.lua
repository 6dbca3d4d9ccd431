-- needs: actions, channel, conversation, deliveries, keys, last_message, next_item, outbox, questions, states
-- Record that the first reply of the outbox was sent, or is given up. Remove it, and return what is
-- next.
--
-- args:
--   epoch, token   of the worker's lease
--   number         of the reply
--   outcome        how the reply ended, see below
--   detail         the platform's id of a sent message, else why the reply is given up
--   ms             milliseconds, see the outcomes; 0 for the others
--   let_go         true if the lease is released when nothing is left to do
--   written_at     when the platform shows the reply, in microseconds as text, '0' if unknown
--   cause          why the reply is no answer, '' for an answer
--   price_class    by which class the platform charges the message, 'free' for nothing
-- outcomes:
--   sent           `ms` says by how much the reply brings its chat ahead of the chat's rate limit
--   dead           the reply cannot arrive
--   doubtful       the last attempt may have arrived
--   closed         the address takes no messages
--   opted_out      the address takes no messages because its user asked for that
--   barred         the bot may not write here, not even after a further message of a user
--   chat_barred    the bot may not write in any thread of the chat, which the caller stores
--   limited        the channel is silent for `ms`
-- returns: JSON with `status` ('ok', 'gone' for a reply that is recorded already, or 'lost' for the
--   lease), `next_item` (what is next) and `lifts_bar` (true if the reply shows that the bot may
--   write in its chat again). With 'lost' there is only the status.

-- Outcomes after which the address takes no messages until a user writes.
local CLOSES_ADDRESS = {closed = true, opted_out = true, barred = true, chat_barred = true}

-- Return whether this reply shows that the bot may write in its chat again. The field stays, so
-- that a repeated call has the same answer.
local function lifts_bar()
  return conversation_number('bar_lifted_by') == args.number
end

local function answer(status, item)
  return cjson.encode({status = status, next_item = item, lifts_bar = lifts_bar()})
end

-- The call is repeated because its answer was lost.
if has_released() then return answer('ok', {kind = 'idle'}) end
if not holds_lease() then return cjson.encode({status = 'lost'}) end

local reply = parse_reply(redis.call('LINDEX', outbox, 0) or '')
if tonumber(reply.number) ~= args.number then return answer('gone', next_item_or_release()) end

-- An earlier message of a question asks, too: if it never arrives, the question expires.
local number = reply.number
local action_id = reply.action_id
local asks = reply.role == 'question' or reply.role == 'question_part'
local is_doubtful = args.outcome == 'doubtful'
  or redis.call('HEXISTS', conversation_key, 'suspect:' .. number) == 1
local attempts = conversation_number('reply_attempts') + 1

redis.call('LPOP', outbox)
clear_hold()
redis.call('HSET', conversation_key, 'reply_attempts', 0)
redis.call('HDEL', conversation_key, 'sending', 'slot', 'suspect:' .. number,
  'asks:' .. (number - MAX_DELIVERIES))

-- The reply as operators find it among the undelivered ones.
local undelivered = {id = conversation .. '#' .. number, at = now(), attempts = attempts}

-- Count a message that the platform charges.
local function count_paid()
  local paid = shard .. ':paid:' .. math.floor(now() / DAY_MS)
  local channel = string.match(conversation, '^[^:]+')
  redis.call('HINCRBY', paid, channel .. ' ' .. args.price_class, 1)
  redis.call('PEXPIRE', paid, KEEP_PAID_MS)
end

-- Record the delivery of a sent reply. The platform may have reported on it before this call, about
-- this copy of the reply or an earlier one.
local function record_sent(report)
  local is_failure_of_earlier_copy = report
    and report.state == 'failed'
    and args.detail ~= ''
    and report.receipt ~= args.detail
  if is_failure_of_earlier_copy then redis.call('HDEL', deliveries, number) end

  local state = is_doubtful and 'ambiguous' or 'sent'
  local is_new = record_delivery(number, state, attempts, args.detail, args.cause)
  if is_new and is_doubtful then add_undelivered(shard .. ':ambiguous', undelivered) end

  -- The report stays, and gets the reason that only the worker knows.
  if not is_new and args.cause ~= '' and report.reason == '' then
    local entry = redis.call('HGET', deliveries, number)
    redis.call('HSET', deliveries, number, entry .. args.cause)
  end
end

-- The user can see a question, or a piece of it, from now on. `report`: what the platform reported
-- about the reply before, nil for nothing.
local function note_shown(report)
  if reply.role == 'question' then
    open_window(action_id, conversation_number('last_turn'), args.written_at)
    set_question_message(action_id, args.detail)
  end
  if asks then set_asking(number, action_id) end
  if reply.role ~= 'question_part' then set_last_question(action_id, args.written_at) end

  -- Of a reply that was sent twice, the platform may have reported on the first copy.
  if report then add_question_message(action_id, report.receipt) end
  add_question_message(action_id, args.detail)
end

-- The question has ended while its message was on its way: the message is replaced now.
local function send_late_ending()
  local ending = redis.call('HGET', action_key(action_id), 'late_ending')
  if not ending or reply.role ~= 'question' then return end
  redis.call('HDEL', action_key(action_id), 'late_ending')
  append_reply(replacing(ending, args.detail))
end

local function settle_sent()
  if args.price_class ~= 'free' then count_paid() end

  -- A message arrived, so the bot may write here.
  if redis.call('HDEL', conversation_key, 'in_barred_chat') == 1 then
    redis.call('HSET', conversation_key, 'bar_lifted_by', number)
  end
  redis.call('HDEL', conversation_key, 'barred_until')

  local report = load_delivery(number)
  record_sent(report)
  if args.ms ~= 0 then
    local free_at = math.max(now(), conversation_number('chat_free_at'))
    redis.call('HSET', conversation_key, 'chat_free_at', free_at + args.ms)
  end
  if action_id then
    note_shown(report)
    send_late_ending()
  end

  -- The failure may have been reported before this call.
  if load_delivery(number).state == 'failed' then expire_asked(number) end
end

local function settle_given_up()
  record_delivery(number, 'dead', attempts, '', args.detail)
  undelivered.reason = args.detail
  undelivered.asks = asks
  undelivered.doubtful = is_doubtful
  undelivered.entry = reply.record
  add_undelivered(shard .. ':dead', undelivered)
  if asks then set_asking(number, action_id) end

  if args.outcome == 'limited' then silence_channel(now() + args.ms) end
  if CLOSES_ADDRESS[args.outcome] then
    close_address(args.detail, args.outcome == 'opted_out')
    keep_conversation()
  end
  if args.outcome == 'barred' then
    redis.call('HSET', conversation_key, 'barred_until', string.format('%d', now() + BARRED_MS))
  end

  -- The user never saw the question, so no yes can be meant for it.
  if asks and redis.call('HGET', action_key(action_id), 'state') == 'armed' then
    enter(action_id, {'expired'})
    tell_undelivered(action_id)
  end
end

if args.outcome == 'sent' then
  settle_sent()
else
  settle_given_up()
end
return answer('ok', next_item_or_release())
