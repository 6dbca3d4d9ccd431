-- needs: actions, conversation, keys, outbox, records, states, timers
-- A question is the message that shows a pending action and asks for a yes. Its window is the time
-- in which the yes counts; it opens when the question is delivered.

-- Set a timer about an unanswered question, unless it has nothing to send, or the conversation has
-- too many timers.
--
-- `id`: 'alarm:' or 'end:' with the user. It is the same for each action of a user, so the timer of
-- the next question takes the place of one that has nothing to send any more.
--
-- `entry`: the action that the timer asks about (`asks`) or ends (`ends`), what is sent then
-- (`reply`), and what then replaces the message with the question (`ending`). Absent ones are nil.
local function set_question_timer(id, at, entry)
  local sends_nothing = not (entry.reply or entry.ending)
  if sends_nothing or redis.call('ZCARD', timers) >= MAX_TIMERS then return end

  entry.id = id
  entry.at = at
  set_timer(id, at, encode_record(entry))
end

-- Set the timers whose turns come in while a question is open. `timer_turns`: a list as JSON of
-- `name`, `after_ms` and `turn`.
local function set_timer_turns(action_id, user, timer_turns)
  for _, each in ipairs(cjson.decode(timer_turns)) do
    local id = each.name .. ':' .. action_id
    local at = now() + each.after_ms
    set_timer(id, at, encode_record({
      id = id, at = at, asks = action_id, turn = each.turn, turn_user = user,
    }))
  end
end

-- Count an action among those that wait for other people, for metrics. One that was forgotten, such
-- as after a restore, is left out once its time must be over.
local function list_as_waiting_for_others(action_id)
  redis.call('ZREMRANGEBYSCORE', waiting_for_others, '-inf', now() - MAX_WAITING_MS)
  redis.call('ZADD', waiting_for_others, now(), action_id)
  redis.call('PEXPIRE', waiting_for_others, MAX_WAITING_MS)
end

-- Open the window of an action, and of the steps of a plan: the user can see the preview from now
-- on. `last_seen_seq`: the last turn that came in before. `written_at`: when the platform showed
-- the question, in microseconds as text, '0' if unknown.
local function open_window(action_id, last_seen_seq, written_at)
  local state, user, ttl_ms, steps, notice, ending, alarm, alarm_after_ms, timer_turns, requests =
    unpack(redis.call('HMGET', action_key(action_id),
      'state', 'user', 'ttl_ms', 'steps', 'notice', 'ending', 'alarm', 'alarm_after_ms',
      'timer_turns', 'requests'))
  if state ~= 'armed' then return end

  local window_ms = tonumber(ttl_ms) or 0
  enter(action_id, {'shown'},
    'expires_at', now() + window_ms, 'last_seen_seq', last_seen_seq,
    'written_at', written_at, 'shown_at', now())

  -- The alarm rings before the window closes, or in the same moment: then it comes first, because
  -- 'alarm:' sorts before 'end:'.
  local alarm_ms = math.min(window_ms, tonumber(alarm_after_ms) or window_ms)
  set_question_timer('alarm:' .. user, now() + alarm_ms, {
    asks = action_id, reply = alarm or nil,
  })
  set_question_timer('end:' .. user, now() + window_ms, {
    ends = action_id, reply = notice or nil, ending = ending or nil,
  })
  if timer_turns then set_timer_turns(action_id, user, timer_turns) end
  if requests then list_as_waiting_for_others(action_id) end

  for step in string.gmatch(steps or '', '%S+') do open_window(step, last_seen_seq, written_at) end
end

-- Record the platform's id of the message with the question, so that the message can be changed
-- later.
local function set_question_message(action_id, message)
  if message == '' or redis.call('EXISTS', action_key(action_id)) == 0 then return end
  redis.call('HSET', action_key(action_id), 'question_message', message)
end

-- Record that a message shows the question, a piece of it or a copy: a reply of the user that
-- quotes this message quotes the question. The newest MAX_QUESTION_MESSAGES ids are kept.
local function add_question_message(action_id, message)
  if message == '' or message == '-' then return end
  local key = action_key(action_id)
  if redis.call('EXISTS', key) == 0 then return end

  local messages = {}
  for id in string.gmatch(redis.call('HGET', key, 'question_messages') or '', '%S+') do
    if id ~= message then messages[#messages + 1] = id end
  end
  messages[#messages + 1] = message
  local first = math.max(1, #messages - MAX_QUESTION_MESSAGES + 1)
  redis.call('HSET', key, 'question_messages', table.concat(messages, ' ', first))
end

-- Record that a reply is the question, or a piece of it: the platform may report later that the
-- reply failed.
local function set_asking(number, action_id)
  redis.call('HSET', conversation_key, 'asks:' .. number, action_id)
end

-- The question of an action did not arrive. Tell the conversation that waits for the answer, once.
local function tell_undelivered(action_id)
  local entry = redis.call('HGET', action_key(action_id), 'undelivered')
  if not entry then return end
  redis.call('HDEL', action_key(action_id), 'undelivered')
  local was_expected = is_worker_expected()
  append_reply(entry)
  keep_conversation()
  if not was_expected then redis.call('ZADD', due, now(), conversation) end
end

-- A reply failed after all. The action that it asked about ends, because its user never saw the
-- question.
local function expire_asked(number)
  local action_id = redis.call('HGET', conversation_key, 'asks:' .. number)
  if not action_id then return end
  local state = redis.call('HGET', action_key(action_id), 'state')
  if state ~= 'armed' and state ~= 'shown' then return end
  enter(action_id, {'expired'})
  tell_undelivered(action_id)
end
