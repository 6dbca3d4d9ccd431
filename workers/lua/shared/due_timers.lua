-- needs: actions, conversation, inbox, keys, outbox, states, timers
-- The timers of a conversation that are due: what they send goes to the outbox, and a turn that they
-- bring to the inbox.

-- Return whether the window of an action closed without an answer. Then the action ends here.
local function expire_unanswered(action_id)
  local state, expires_at =
    unpack(redis.call('HMGET', action_key(action_id), 'state', 'expires_at'))
  if state ~= 'shown' or now() < (tonumber(expires_at) or 0) then return false end
  enter(action_id, {'expired'})
  return true
end

-- Return whether a timer still has something to send. A timer about a question has, while the
-- question has no answer.
local function still_applies(timer_entry)
  if timer_entry.ends then return expire_unanswered(timer_entry.ends) end
  if not timer_entry.asks then return true end
  return redis.call('HGET', action_key(timer_entry.asks), 'state') == 'shown'
end

-- Send what replaces the message with the question, if the platform's id of that message is known.
local function replace_question(action_id, ending)
  local question_message = redis.call('HGET', action_key(action_id), 'question_message')
  if not question_message then return end

  append_reply(replacing(ending, question_message))
end

-- Append the turn of a timer about a question to the inbox.
local function append_timer_turn(entry)
  append_to_inbox({
    seq = next_number('last_turn'),
    received_at = now(),
    user = entry.turn_user,
    tapped_action_id = entry.asks,
    json = entry.turn,
  })
end

-- Drop a timer that is due, and append what it sends to the outbox, or its turn to the inbox.
local function run_timer(id, entry)
  drop_timer(id)
  if entry.turn then
    if still_applies(entry) then append_timer_turn(entry) end
    return
  end
  local sends_nothing = not (entry.reply or entry.ending)
  if sends_nothing or not still_applies(entry) then return end
  if entry.ending then replace_question(entry.ends, entry.ending) end
  if entry.reply then append_reply(entry.reply) end
end

-- Run the timers that are due. A timer about a question waits until no turn waits: the answer may
-- be among the turns.
local function run_due_timers()
  local ids = redis.call('ZRANGEBYSCORE', timers, '-inf', now())
  for _, id in ipairs(ids) do
    local entry = cjson.decode(redis.call('HGET', timer, id) or '{}')
    local is_about_question = entry.ends or entry.asks
    if not is_about_question or redis.call('LLEN', inbox) == 0 then run_timer(id, entry) end
  end
  if #ids > 0 then keep_conversation() end
end
