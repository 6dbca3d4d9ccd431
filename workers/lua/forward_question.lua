-- needs: actions, changes, conversation, forwarded, keys, outbox, queue
-- Ask a question from another conversation, once: store its action, and append its messages to the
-- outbox.
--
-- args:
--   delivery   the id of the question in the other conversation
--   action     the action that the question is about, `NewAction.to_dict` in Python
--   messages   the records of the messages of the question; the last one asks
--   from ARGV[2]: the hash of the RQ job
-- returns: the number of the last message here, '' if too many replies wait here.
local earlier = earlier_answer()
if earlier then return earlier end
if redis.call('LLEN', outbox) >= MAX_FORWARDED_WAITING then return '' end

-- Put the action at the head of the list of requests to its user.
local function list_as_request(request)
  local key = received_requests_key(request.user)
  redis.call('LPUSH', key, request.action_id)
  redis.call('LTRIM', key, 0, MAX_RECENT - 1)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), KEEP_ACTION_MS + request.ttl_ms))
end

local was_expected = is_worker_expected()
store_action(args.action)
list_as_request(args.action)
local number
for at, message in ipairs(args.messages) do
  local role = at == #args.messages and 'question' or 'question_part'
  number = append_reply(message, args.action.action_id, role)
end
keep_conversation()
if not was_expected then wake_worker(2) end
return remember_answer(number)
