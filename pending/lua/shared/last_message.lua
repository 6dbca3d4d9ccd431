-- needs: actions, conversation, keys
-- The last message of the bot in a conversation. If it is a question, the conversation's field 'last_question' names its
-- action; otherwise the field is empty. A plain yes answers the last message that its user has read.

-- The bot begins to send another message, so the question is not the last message any more. Its action's field
-- 'followed_after_seq' holds the number of the last turn that came in before.
local function follow_question()
  local action_id = redis.call('HGET', conversation_key, 'last_question')
  if not action_id or action_id == '' then return end
  redis.call('HSET', conversation_key, 'last_question', '')
  if redis.call('EXISTS', action_key(action_id)) == 1 then
    redis.call('HSET', action_key(action_id), 'followed_after_seq', conversation_number('last_turn'))
  end
end

-- A message that shows the question of an action was delivered, at the platform's time `written` ('0' if unknown). If
-- another message was sent since the question, a yes that came in before this one may answer that message: then it
-- counts as a yes from before the question.
local function set_last_question(action_id, written)
  redis.call('HSET', conversation_key, 'last_question', action_id)
  if redis.call('HDEL', action_key(action_id), 'followed_after_seq') == 0 then return end
  redis.call('HSET', action_key(action_id), 'last_seen_seq', conversation_number('last_turn'))
  if written ~= '0' then redis.call('HSET', action_key(action_id), 'written_at', written) end
end
