-- needs: actions, conversation, keys
-- The last message of the bot in a conversation. If it is a question, the conversation's field 'newest' names its
-- action; otherwise the field is empty. A plain yes answers the last message that its user has read.

-- The bot begins to send another message, so the question is not the last message any more. Its action's field
-- 'followed' holds the number of the last turn that came in before.
local function follow_question()
  local pid = redis.call('HGET', lane, 'newest')
  if not pid or pid == '' then return end
  redis.call('HSET', lane, 'newest', '')
  if redis.call('EXISTS', action_key(pid)) == 1 then
    redis.call('HSET', action_key(pid), 'followed', lane_number('received'))
  end
end

-- A message that shows the question of an action was delivered, at the platform's time `written` ('0' if unknown). If
-- another message was sent since the question, a yes that came in before this one may answer that message: then it
-- counts as a yes from before the question.
local function set_last_question(pid, written)
  redis.call('HSET', lane, 'newest', pid)
  if redis.call('HDEL', action_key(pid), 'followed') == 0 then return end
  redis.call('HSET', action_key(pid), 'seen', lane_number('received'))
  if written ~= '0' then redis.call('HSET', action_key(pid), 'written', written) end
end
