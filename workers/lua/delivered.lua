-- needs: actions, channel, conversation, deliveries, keys, last_message, next_item, outbox, questions, states
-- Record that the first reply was sent, or is given up, and return what is next.
-- args: epoch, token, number (of the reply), outcome, detail (the platform's message id, or why the reply is given up),
-- ms, let_go (release the lease when nothing is left), written (when the platform shows the reply, in microseconds as
-- text, '0' if unknown), cause (why the reply is no answer, '' for an answer), price_class (what the platform charges
-- the message by, 'free' for nothing).
-- Returns JSON: `status` ('ok', 'gone' for a reply that is recorded already, or 'lost'), `next_item` (what is next), and
-- `lifts_bar` (1 if the reply shows that the bot may write in its chat again).
-- Outcomes:
--   sent         `ms` says how far the reply brings its chat ahead of its rate limit
--   dead         it cannot arrive
--   doubtful     the last attempt may have arrived
--   closed       the address takes no messages
--   opted_out    nor does it because its user asked for that
--   barred       nor does it after a further message of its users
--   chat_barred  nor does any thread of the chat, which the caller stores
--   limited      the channel is silent for `ms`
-- A + before an action id marks a piece of a question that is not the last: it opens no window, and
-- the question expires if the piece never arrives. A = marks a repetition of the question.

-- Count a message that the platform charges.
local function count_paid()
  local paid = shard .. ':paid:' .. math.floor(now() / DAY_MS)
  redis.call('HINCRBY', paid, string.match(conversation, '^[^:]+') .. ' ' .. args.price_class, 1)
  redis.call('PEXPIRE', paid, KEEP_PAID_MS)
end

if has_released() then return cjson.encode({status = 'ok', next_item = {kind = 'idle'}}) end
if not holds_lease() then return cjson.encode({status = 'lost'}) end
local head = redis.call('LINDEX', outbox, 0)
local number, action_id, entry = string.match(head or '', '^(%d+) (%S+) (.*)$')
if tonumber(number) ~= args.number then return cjson.encode({status = 'gone', next_item = next_item_or_release()}) end
local mark, asked = string.match(action_id, '^([+=]?)(.*)$')
local asks = action_id ~= '-' and mark ~= '='
local doubtful = args.outcome == 'doubtful' or redis.call('HEXISTS', conversation_key, 'suspect:' .. number) == 1
local aside = {id = conversation .. '#' .. number, at = now(), attempts = conversation_number('reply_attempts') + 1}
redis.call('LPOP', outbox)
clear_hold()
redis.call('HSET', conversation_key, 'reply_attempts', 0)
redis.call('HDEL', conversation_key, 'sending', 'slot', 'suspect:' .. number, 'asks:' .. (number - MAX_DELIVERIES))
local lifts_bar = 0
if args.outcome == 'sent' then
  if args.price_class ~= 'free' then count_paid() end
  lifts_bar = redis.call('HDEL', conversation_key, 'in_barred_chat')
  redis.call('HDEL', conversation_key, 'barred_until')
  local reported, copy = string.match(redis.call('HGET', deliveries, number) or '', '^(%S+) %d+ %d+ (%S+)')
  if reported == 'failed' and args.detail ~= '' and copy ~= args.detail then
    redis.call('HDEL', deliveries, number)  -- the failure was of an earlier copy
  end
  local new = record_delivery(number, doubtful and 'ambiguous' or 'sent', aside.attempts, args.detail, args.cause)
  if not new and args.cause ~= '' then  -- the platform's report came first, and without a reason
    local words = redis.call('HGET', deliveries, number) or ''
    if string.match(words, '^%S+ %d+ %d+ %S+ $') then redis.call('HSET', deliveries, number, words .. args.cause) end
  end
  if doubtful and new then add_undelivered(shard .. ':ambiguous', aside) end
  if args.ms ~= 0 then redis.call('HSET', conversation_key, 'chat_free_at', math.max(now(), conversation_number('chat_free_at')) + args.ms) end
  if asks and mark == '' then
    open_window(asked, conversation_number('last_turn'), args.written_at)
    set_question_message(asked, args.detail)
  end
  if asks then set_asking(number, asked) end
  if action_id ~= '-' and mark ~= '+' then set_last_question(asked, args.written_at) end
  if action_id ~= '-' then
    add_question_message(asked, copy or '')  -- of a reply that was sent twice, the platform reported on the first copy
    add_question_message(asked, args.detail)
  end
  -- The failure may have been reported before this call.
  if string.find(redis.call('HGET', deliveries, number), '^failed ') then expire_asked(number) end
else
  record_delivery(number, 'dead', aside.attempts, '', args.detail)
  aside.reason, aside.asks, aside.doubtful, aside.entry = args.detail, asks, doubtful, entry
  add_undelivered(shard .. ':dead', aside)
  if args.outcome == 'limited' then silence_channel(now() + args.ms) end
  local closes = {closed = true, opted_out = true, barred = true, chat_barred = true}
  if closes[args.outcome] then
    close_address(args.detail, args.outcome == 'opted_out')
    keep_conversation()
  end
  if args.outcome == 'barred' then redis.call('HSET', conversation_key, 'barred_until', string.format('%d', now() + BARRED_MS)) end
  if asks and redis.call('HGET', action_key(asked), 'state') == 'armed' then enter(asked, {'expired'}) end
end
return cjson.encode({status = 'ok', next_item = next_item_or_release(), lifts_bar = lifts_bar})
