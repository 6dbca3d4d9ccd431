-- needs: actions, conversation, forwarded, outbox, queue, states
-- End a question that another conversation has forwarded to this one, and replace its message.
--
-- args:
--   delivery       the id of this ending in the other conversation
--   action_id      the action of the question
--   state          the state that the action enters, if it has not ended
--   outcome_text   the text for people who tap the question later
--   ARGV[2]        the record of the reply that replaces the message
--   from ARGV[3]: the hash of the RQ job
-- returns: 'ended', or 'gone' if the action is not stored.
local earlier = earlier_answer()
if earlier then return earlier end

local key = action_key(args.action_id)
local state, message = unpack(redis.call('HMGET', key, 'state', 'question_message'))
if not state then return remember_answer('gone') end

redis.call('HSET', key, 'outcome_text', args.outcome_text)
local was_expected = is_worker_expected()
if OPEN_STATES[state] then enter(args.action_id, {args.state}) end
if message then
  append_reply(replacing(ARGV[2], message))
elseif state == 'armed' then
  -- The question is being sent. `delivered.lua` replaces its message once the id is known.
  redis.call('HSET', key, 'late_ending', ARGV[2])
end
keep_conversation()
if not was_expected and has_work() then wake_worker(3) end
return remember_answer('ended')
