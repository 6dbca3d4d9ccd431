-- needs: conversation, deliveries, keys, questions
-- Record what a platform reports about a reply it had accepted. Reports may come in any order.
-- args: number (of the reply), message (the platform's id), news ('sent', 'delivered', 'read' or 'failed'), reason.
-- Returns the state that is stored, or '' when the reply is unknown.
local RANK = {dead = 0, sent = 1, ambiguous = 1, delivered = 2, read = 3, failed = 4, retried = 5}
local number, message, news = args.number, args.message, args.news
local known = redis.call('HGET', deliveries, number)
local state, attempts, receipt, cause = string.match(known or '', '^(%S+) %d+ (%d+) (%S+) ?(.*)$')
local asked = redis.call('HGET', conversation_key, 'asks:' .. number)
if asked then add_question_message(asked, message) end
if not state then
  -- The report is faster than the worker that sent the reply. It counts once a worker records the send.
  if string.match(redis.call('LINDEX', outbox, 0) or '', '^%d+') ~= tostring(number) then return '' end
  attempts = conversation_number('reply_attempts') + 1
else
  -- Of a reply that was sent twice, the copy that arrived counts.
  local rank = state == 'failed' and receipt ~= message and 0 or RANK[state]
  local other = receipt ~= message and (receipt ~= '-' or state == 'dead')
  if RANK[news] <= rank or (other and news == 'failed') then return state end
  redis.call('HDEL', deliveries, number)
end
record_delivery(number, news, attempts, message, args.reason ~= '' and args.reason or cause or '')
if news == 'failed' then
  add_undelivered(shard .. ':failed', {
    id = conversation .. '#' .. number, at = now(), attempts = tonumber(attempts), reason = args.reason,
  })
  expire_asked(number)
end
return news
