-- needs: actions, conversation, keys
-- Which message is the bot's last one in a conversation.
--
-- A plain yes answers the last message that its user has read. If that message is a question, the
-- conversation's field 'last_question' holds the id of its action; otherwise the field is empty.

-- The bot begins to send another message, so an open question is not its last message any more. The
-- action's field 'followed_after_seq' holds the number of the last turn that came in before.
local function follow_question()
  local action_id = redis.call('HGET', conversation_key, 'last_question')
  if not action_id or action_id == '' then return end

  redis.call('HSET', conversation_key, 'last_question', '')
  local key = action_key(action_id)
  if redis.call('EXISTS', key) == 1 then
    redis.call('HSET', key, 'followed_after_seq', conversation_number('last_turn'))
  end
end

-- A message that shows the question of an action was delivered. `written_at`: when the platform
-- showed it, in microseconds as text, '0' if unknown.
local function set_last_question(action_id, written_at)
  redis.call('HSET', conversation_key, 'last_question', action_id)

  -- The question is repeated below another message. A yes that came in before may answer that
  -- message, so it counts as a yes from before the question.
  local key = action_key(action_id)
  local was_followed = redis.call('HDEL', key, 'followed_after_seq') == 1
  if not was_followed then return end
  redis.call('HSET', key, 'last_seen_seq', conversation_number('last_turn'))
  if written_at ~= '0' then redis.call('HSET', key, 'written_at', written_at) end
end
