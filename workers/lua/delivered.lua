-- needs: actions, channel, conversation, deliveries, keys, last_message, next_item, outbox, questions, states
-- Record that the first reply of the outbox was sent, or is given up. Remove it, and return what is next.
-- args: epoch and token (of the lease), number (of the reply), outcome (see below), detail (the platform's message id of
-- a sent reply, else why it is given up), ms (milliseconds, see the outcomes; else 0), let_go (release the lease when
-- nothing is left), written_at (when the platform shows the reply, in microseconds as text, '0' if unknown), cause (why
-- the reply is no answer, '' for an answer), price_class (what the platform charges the message by, 'free' for nothing).
-- Returns JSON: `status` ('ok', 'gone' for a reply that is recorded already, or 'lost'), `next_item` (what is next) and
-- `lifts_bar` (1 if the reply shows that the bot may write in its chat again, else 0). With 'lost' there is only the
-- status.
-- Outcomes:
--   sent         `ms` says how far the reply brings its chat ahead of its rate limit
--   dead         the reply cannot arrive
--   doubtful     the last attempt may have arrived
--   closed       the address takes no messages
--   opted_out    the address takes no messages because its user asked for that
--   barred       the bot may not write here, not even after a further message of a user
--   chat_barred  the bot may not write in any thread of the chat, which the caller stores
--   limited      the channel is silent for `ms`
-- A + before an action id marks a piece of a question that is not the last: it opens no window, and
-- the question expires if the piece never arrives. A = marks a repetition of the question.

-- Outcomes after which the address takes no messages until a user writes.
local CLOSES_ADDRESS = {closed = true, opted_out = true, barred = true, chat_barred = true}

-- Count a message that the platform charges.
local function count_paid()
  local paid = shard .. ':paid:' .. math.floor(now() / DAY_MS)
  redis.call('HINCRBY', paid, string.match(conversation, '^[^:]+') .. ' ' .. args.price_class, 1)
  redis.call('PEXPIRE', paid, KEEP_PAID_MS)
end

-- Return 1 if this reply shows that the bot may write in its chat again. The field stays, so that a repeated call has
-- the same answer.
local function lifts_bar()
  return conversation_number('bar_lifted_by') == args.number and 1 or 0
end

local function answer(item)
  return cjson.encode({status = 'ok', next_item = item, lifts_bar = lifts_bar()})
end

if has_released() then return answer({kind = 'idle'}) end
if not holds_lease() then return cjson.encode({status = 'lost'}) end

local head = redis.call('LINDEX', outbox, 0)
local number, action_id, entry = string.match(head or '', '^(%d+) (%S+) (.*)$')
if tonumber(number) ~= args.number then
  return cjson.encode({status = 'gone', next_item = next_item_or_release(), lifts_bar = lifts_bar()})
end

-- `asked` is the action that the reply is about, '-' for none.
local mark, asked = string.match(action_id, '^([+=]?)(.*)$')
local asks = action_id ~= '-' and mark ~= '='
local is_doubtful = args.outcome == 'doubtful' or redis.call('HEXISTS', conversation_key, 'suspect:' .. number) == 1
local attempts = conversation_number('reply_attempts') + 1

redis.call('LPOP', outbox)
clear_hold()
redis.call('HSET', conversation_key, 'reply_attempts', 0)
redis.call('HDEL', conversation_key, 'sending', 'slot', 'suspect:' .. number, 'asks:' .. (number - MAX_DELIVERIES))

-- The reply as operators find it among the undelivered ones.
local undelivered = {id = conversation .. '#' .. number, at = now(), attempts = attempts}

-- Record the delivery of a sent reply. Return the message id of a copy that the platform has reported on, nil for none.
local function record_sent()
  local reported, copy = string.match(redis.call('HGET', deliveries, number) or '', '^(%S+) %d+ %d+ (%S+)')
  if reported == 'failed' and args.detail ~= '' and copy ~= args.detail then
    redis.call('HDEL', deliveries, number)  -- the failure was of an earlier copy
  end

  local state = is_doubtful and 'ambiguous' or 'sent'
  local is_new = record_delivery(number, state, attempts, args.detail, args.cause)
  if is_new and is_doubtful then add_undelivered(shard .. ':ambiguous', undelivered) end

  -- The platform's report came first, and without a reason.
  if not is_new and args.cause ~= '' then
    local report = redis.call('HGET', deliveries, number) or ''
    local has_no_reason = string.match(report, '^%S+ %d+ %d+ %S+ $')
    if has_no_reason then redis.call('HSET', deliveries, number, report .. args.cause) end
  end
  return copy
end

-- The user can see the question, or a piece of it, from now on.
local function note_shown(copy)
  if asks and mark == '' then
    open_window(asked, conversation_number('last_turn'), args.written_at)
    set_question_message(asked, args.detail)
  end
  if asks then set_asking(number, asked) end
  if mark ~= '+' then set_last_question(asked, args.written_at) end

  -- Of a reply that was sent twice, the platform reported on the first copy.
  add_question_message(asked, copy or '')
  add_question_message(asked, args.detail)
end

local function settle_sent()
  if args.price_class ~= 'free' then count_paid() end

  -- A message arrived, so the bot may write here.
  if redis.call('HDEL', conversation_key, 'in_barred_chat') == 1 then
    redis.call('HSET', conversation_key, 'bar_lifted_by', number)
  end
  redis.call('HDEL', conversation_key, 'barred_until')

  local copy = record_sent()
  if args.ms ~= 0 then
    local free_at = math.max(now(), conversation_number('chat_free_at'))
    redis.call('HSET', conversation_key, 'chat_free_at', free_at + args.ms)
  end
  if action_id ~= '-' then note_shown(copy) end

  -- The failure may have been reported before this call.
  if string.find(redis.call('HGET', deliveries, number), '^failed ') then expire_asked(number) end
end

local function settle_given_up()
  record_delivery(number, 'dead', attempts, '', args.detail)
  undelivered.reason = args.detail
  undelivered.asks = asks
  undelivered.doubtful = is_doubtful
  undelivered.entry = entry
  add_undelivered(shard .. ':dead', undelivered)

  if args.outcome == 'limited' then silence_channel(now() + args.ms) end
  if CLOSES_ADDRESS[args.outcome] then
    close_address(args.detail, args.outcome == 'opted_out')
    keep_conversation()
  end
  if args.outcome == 'barred' then
    redis.call('HSET', conversation_key, 'barred_until', string.format('%d', now() + BARRED_MS))
  end

  -- The user never saw the question, so no yes can be meant for it.
  if asks and redis.call('HGET', action_key(asked), 'state') == 'armed' then enter(asked, {'expired'}) end
end

if args.outcome == 'sent' then settle_sent() else settle_given_up() end
return answer(next_item_or_release())
