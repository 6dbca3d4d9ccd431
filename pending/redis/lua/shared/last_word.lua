-- needs: actions, conversation, keys
-- The last thing that the bot said in a conversation. The field 'newest' of the conversation names the action whose
-- question it is, and is empty after anything else. A plain yes answers the last thing that its user has read.

-- The bot begins to say something else. Then the question that was the last thing it said is not that any more: its
-- field 'followed' holds the number of the last turn that came in while it was.
local function follow_question()
  local pid = redis.call('HGET', lane, 'newest')
  if not pid or pid == '' then return end
  redis.call('HSET', lane, 'newest', '')
  if redis.call('EXISTS', action_key(pid)) == 1 then
    redis.call('HSET', action_key(pid), 'followed', lane_number('received'))
  end
end

-- A message that shows the question of an action was delivered, at the platform's time `written` ('0' if unknown). A
-- yes that came in before it may answer what the bot said in between, so it counts as one from before the question.
local function set_last_question(pid, written)
  redis.call('HSET', lane, 'newest', pid)
  if redis.call('HDEL', action_key(pid), 'followed') == 0 then return end
  redis.call('HSET', action_key(pid), 'seen', lane_number('received'))
  if written ~= '0' then redis.call('HSET', action_key(pid), 'written', written) end
end
