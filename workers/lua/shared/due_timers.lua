-- needs: actions, conversation, keys, outbox, records, states, timers
-- Timers that are due.

-- Return whether the window of an action closed without an answer. If so, the action ends here.
local function expire_unanswered(action_id)
  local state, expires = unpack(redis.call('HMGET', action_key(action_id), 'state', 'expires_at'))
  if state ~= 'shown' or now() < (tonumber(expires) or 0) then return false end
  enter(action_id, {'expired'})
  return true
end

-- Return whether a timer still has something to send. One about a question has, while the question has no answer.
local function still_applies(timer_entry)
  if timer_entry.ends then return expire_unanswered(timer_entry.ends) end
  return not timer_entry.asks or redis.call('HGET', action_key(timer_entry.asks), 'state') == 'shown'
end

-- Replace the message with the question, if its id is known.
local function replace_question(action_id, ending)
  local prompt = redis.call('HGET', action_key(action_id), 'question_message')
  if not prompt then return end
  local entry = cjson.decode(ending)
  local reply = cjson.decode(entry.reply)
  reply.edits = prompt
  entry.reply = cjson.encode(reply)
  append_reply('-', encode_record(entry))
end

-- Append what the due timers send to the outbox, and drop them. A timer about a question waits until no turn waits: the
-- answer may be among the turns.
local function run_due_timers()
  local ids = redis.call('ZRANGEBYSCORE', timers, '-inf', now())
  for _, id in ipairs(ids) do
    local entry = cjson.decode(redis.call('HGET', timer, id) or '{}')
    if not (entry.ends or entry.asks) or redis.call('LLEN', inbox) == 0 then
      drop_timer(id)
      if (entry.reply or entry.ending) and still_applies(entry) then
        if entry.ending then replace_question(entry.ends, entry.ending) end
        if entry.reply then append_reply('-', entry.reply) end
      end
    end
  end
  if #ids > 0 then keep_conversation() end
end
