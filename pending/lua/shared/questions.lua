-- needs: actions, keys, records, states, timers
-- A question is the message that shows an action and asks for a yes.

-- Set the timer for an unanswered question: what it sends, and what then replaces the message with the question. The
-- id is the same for each action of a user: the next question's timer replaces one that has nothing to send.
local function set_notice(kind, notice, at, timer_entry, ending)
  if not (notice or ending) or redis.call('ZCARD', timers) >= MAX_TIMERS then return end
  timer_entry.id, timer_entry.at = kind .. string.match(notice or ending, '^%S+'), at
  timer_entry.reply = string.match(notice or '', '^%S+ (.*)$')
  timer_entry.ending = string.match(ending or '', '^%S+ (.*)$')
  set_timer(timer_entry.id, at, encode_record(timer_entry))
end

-- Open the window of an action, and of a plan's steps: the user can see the preview. Set the timers for its end and for
-- the alarm, which rings before the end or in the same moment ('alarm:' sorts before 'end:').
local function open_window(action_id, seen, written)
  local state, ttl, steps, notice, ending, alarm, after =
    unpack(redis.call('HMGET', action_key(action_id), 'state', 'ttl_ms', 'steps', 'notice', 'ending', 'alarm', 'alarm_after_ms'))
  if state ~= 'armed' then return end
  enter(action_id, {'shown'}, 'expires_at', now() + (tonumber(ttl) or 0), 'last_seen_seq', seen, 'written_at', written, 'shown_at', now())
  local window = tonumber(ttl) or 0
  set_notice('alarm:', alarm, now() + math.min(window, tonumber(after) or window), {asks = action_id})
  set_notice('end:', notice, now() + window, {ends = action_id}, ending)
  for step in string.gmatch(steps or '', '%S+') do open_window(step, seen, written) end
end

-- Record the platform's id of the message with the question, so that the message can be changed later.
local function set_question_message(action_id, message)
  if message == '' or redis.call('EXISTS', action_key(action_id)) == 0 then return end
  redis.call('HSET', action_key(action_id), 'question_message', message)
end

-- Record that a message shows the question, a piece of it or a copy: a reply that quotes it quotes the question.
local function add_question_message(action_id, message)
  if message == '' or message == '-' or redis.call('EXISTS', action_key(action_id)) == 0 then return end
  local ids = {}
  for id in string.gmatch(redis.call('HGET', action_key(action_id), 'question_messages') or '', '%S+') do
    if id ~= message then ids[#ids + 1] = id end
  end
  ids[#ids + 1] = message
  redis.call('HSET', action_key(action_id), 'question_messages', table.concat(ids, ' ', math.max(1, #ids - MAX_QUESTION_MESSAGES + 1)))
end

-- Record that a reply is the question, or a piece of it: the platform may report later that it failed.
local function set_asking(number, action_id)
  redis.call('HSET', conversation_key, 'asks:' .. number, action_id)
end

-- A reply failed after all. An action that it asked about ends, because the user never saw the question.
local function expire_asked(number)
  local action_id = redis.call('HGET', conversation_key, 'asks:' .. number)
  local state = action_id and redis.call('HGET', action_key(action_id), 'state')
  if state == 'armed' or state == 'shown' then enter(action_id, {'expired'}) end
end
