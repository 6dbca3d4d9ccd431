-- needs: actions, channel, conversation, deliveries, keys, next_item, outbox, questions
-- Record that the first reply was sent, or is given up, and return what is next.
-- ARGV: conversation, epoch, token, number of the reply, outcome, receipt or reason, milliseconds, '1' to release
-- the lease when nothing is left, time at which the platform shows the reply (microseconds, 0 if unknown), cause.
-- Outcomes: 'sent' (receipt: the platform's message id), and with a reason 'dead', 'doubtful' (the last attempt may
-- have arrived), 'closed' (the address takes no messages), 'limited' (the channel is silent for the given
-- milliseconds). Otherwise the milliseconds say how far the reply brings its chat ahead of its rate limit. The cause
-- says why the reply is no answer, '' for an answer. An action id with a + before it marks a piece of a question
-- that is not the last: it opens no window, and the question expires if the piece never arrives. An id with a =
-- marks a repetition of the question.
if has_released(ARGV[2], ARGV[3]) then return {'ok', {'idle'}} end
if not holds_lease(ARGV[2], ARGV[3]) then return {'lost'} end
local head = redis.call('LINDEX', outbox, 0)
local said, pid, entry = string.match(head or '', '^(%d+) (%S+) (.*)$')
if said ~= ARGV[4] then return {'gone', next_item_or_release(ARGV[8], ARGV[2], ARGV[3])} end
local mark, asked = string.match(pid, '^([+=]?)(.*)$')
local asks = pid ~= '-' and mark ~= '='
local doubtful = ARGV[5] == 'doubtful' or redis.call('HEXISTS', lane, 'suspect:' .. said) == 1
local aside = {id = conversation .. '#' .. said, at = now(), tries = lane_number('attempts') + 1}
redis.call('LPOP', outbox)
clear_hold()
redis.call('HSET', lane, 'attempts', 0)
redis.call('HDEL', lane, 'sending', 'slot', 'suspect:' .. said, 'asks:' .. (said - MAX_DELIVERIES))
if ARGV[5] == 'sent' then
  local copy = string.match(redis.call('HGET', deliveries, said) or '', '^%S+ %d+ %d+ (%S+)')
  local failed = string.match(redis.call('HGET', deliveries, said) or '', '^failed %d+ %d+ (%S+)')
  if failed and ARGV[6] ~= '' and failed ~= ARGV[6] then redis.call('HDEL', deliveries, said) end  -- the failure was of an earlier copy
  local new = record_delivery(said, doubtful and 'ambiguous' or 'sent', aside.tries, ARGV[6], ARGV[10])
  if not new and ARGV[10] ~= '' then  -- the platform's report came first, and without a reason
    local words = redis.call('HGET', deliveries, said) or ''
    if string.match(words, '^%S+ %d+ %d+ %S+ $') then redis.call('HSET', deliveries, said, words .. ARGV[10]) end
  end
  if doubtful and new then add_undelivered(shard .. ':ambiguous', aside) end
  if ARGV[7] ~= '0' then redis.call('HSET', lane, 'chat', math.max(now(), lane_number('chat')) + ARGV[7]) end
  if asks and mark == '' then
    open_window(asked, lane_number('received'), ARGV[9])
    set_prompt(asked, ARGV[6])
  end
  if asks then set_asking(said, asked) end
  redis.call('HSET', lane, 'newest', asks and mark == '' and asked or '')
  if pid ~= '-' then
    add_prompt(asked, copy or '')  -- of a reply that was sent twice, the platform reported on the first copy
    add_prompt(asked, ARGV[6])
  end
  if string.find(redis.call('HGET', deliveries, said), '^failed ') then expire_asked(said) end  -- the failure was reported before this call
else
  record_delivery(said, 'dead', aside.tries, '', ARGV[6])
  aside.reason, aside.asks, aside.doubtful, aside.entry = ARGV[6], asks, doubtful, entry
  add_undelivered(shard .. ':dead', aside)
  if ARGV[5] == 'limited' then silence_channel(now() + ARGV[7]) end
  if ARGV[5] == 'closed' then close_address(ARGV[6]) end
  if asks and redis.call('HGET', action_key(asked), 'state') == 'armed' then enter(asked, {'expired'}) end
end
return {'ok', next_item_or_release(ARGV[8], ARGV[2], ARGV[3])}
