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

-- Return what a message of the question says about its action. The last one asks.
local function role_of(at)
  if at == #args.messages then return 'question' end
  return 'question_part'
end

-- Append the messages of the question. Return the number of the last one. They do not wait behind a
-- reply that is held: if the platform does not take them either, other people are asked instead.
local function append_messages()
  local action_id = args.action.action_id
  local numbers = {}
  if current_hold() then
    for at = #args.messages, 1, -1 do
      numbers[at] = prepend_reply(args.messages[at], action_id, role_of(at))
    end
  else
    for at, message in ipairs(args.messages) do
      numbers[at] = append_reply(message, action_id, role_of(at))
    end
  end
  return numbers[#numbers]
end

local was_expected = is_worker_expected()
store_action(args.action)
list_as_request(args.action)
local number = append_messages()
keep_conversation()
if not was_expected then wake_worker(2) end
return remember_answer(number)
