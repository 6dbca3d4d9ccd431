-- needs: conversation, deliveries, keys, questions
-- Record what a platform reports about a reply it had accepted. Reports may come in any order.
-- ARGV: conversation, number of the reply, the platform's message id, 'sent', 'delivered', 'read' or 'failed',
-- reason.
-- Returns the state that is stored, or '' when the reply is unknown.
local RANK = {dead = 0, sent = 1, ambiguous = 1, delivered = 2, read = 3, failed = 4, retried = 5}
local said, message, news = ARGV[2], ARGV[3], ARGV[4]
local known = redis.call('HGET', deliveries, said)
local state, tries, receipt, cause = string.match(known or '', '^(%S+) %d+ (%d+) (%S+) ?(.*)$')
local asked = redis.call('HGET', lane, 'asks:' .. said)
if asked then add_prompt(asked, message) end
if not state then
  -- The report is faster than the worker that sent the reply: it counts once that worker or its successor records the send.
  if string.match(redis.call('LINDEX', outbox, 0) or '', '^%d+') ~= said then return '' end
  tries = lane_number('attempts') + 1
else
  -- Of a reply that was sent twice, the copy that arrived counts.
  local rank = state == 'failed' and receipt ~= message and 0 or RANK[state]
  local other = receipt ~= message and (receipt ~= '-' or state == 'dead')
  if RANK[news] <= rank or (other and news == 'failed') then return state end
  redis.call('HDEL', deliveries, said)
end
record_delivery(said, news, tries, message, ARGV[5] ~= '' and ARGV[5] or cause or '')
if news == 'failed' then
  add_undelivered(shard .. ':failed', {
    id = conversation .. '#' .. said, at = now(), tries = tonumber(tries), reason = ARGV[5],
  })
  expire_asked(said)
end
return news
