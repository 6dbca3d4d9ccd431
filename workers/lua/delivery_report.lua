-- needs: conversation, deliveries, keys, outbox, questions
-- Record what a platform reports about a reply that it had accepted.
--
-- Reports may come in any order, so a report counts only if its state comes later in the life of a
-- message than the stored one.
--
-- args:
--   number    of the reply
--   message   the platform's id of the message
--   news      the reported state: 'sent', 'delivered', 'read' or 'failed'
--   reason    why it failed, '' for none
-- returns: the state that is stored now, '' if the reply is unknown.
local RANK = {dead = 0, sent = 1, ambiguous = 1, delivered = 2, read = 3, failed = 4, retried = 5}

-- Return whether the stored state says more than this report.
local function is_outdated(delivery)
  -- Of a reply that was sent twice, the copy that arrived counts.
  local is_other_copy = delivery.receipt ~= args.message
  local rank = RANK[delivery.state]
  if is_other_copy and delivery.state == 'failed' then rank = 0 end
  if RANK[args.news] <= rank then return true end

  -- A failure of another copy says nothing about this one, and a dead reply has failed already.
  local is_known_copy = delivery.receipt ~= '-' or delivery.state == 'dead'
  return args.news == 'failed' and is_other_copy and is_known_copy
end

local number = args.number
local asked_action_id = redis.call('HGET', conversation_key, 'asks:' .. number)
if asked_action_id then add_question_message(asked_action_id, args.message) end

local delivery = load_delivery(number)
local attempts
local reason
if delivery then
  if is_outdated(delivery) then return delivery.state end
  attempts = delivery.attempts
  reason = delivery.reason
  -- Why a copy did not arrive says nothing of one that did.
  local has_failed = delivery.state == 'dead' or delivery.state == 'failed'
  if has_failed and args.news ~= 'failed' then reason = '' end
  redis.call('HDEL', deliveries, number)
else
  -- The report is faster than the worker that sent the reply. It counts once a worker records the
  -- send.
  if first_reply_number() ~= tostring(number) then return '' end
  attempts = conversation_number('reply_attempts') + 1
end

if args.reason ~= '' then reason = args.reason end
record_delivery(number, args.news, attempts, args.message, reason)
if args.news == 'failed' then
  add_undelivered(shard .. ':failed', {
    id = conversation .. '#' .. number, at = now(), attempts = attempts, reason = args.reason,
  })
  expire_asked(number)
end
return args.news
