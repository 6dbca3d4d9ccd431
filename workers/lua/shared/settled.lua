-- needs: conversation, deliveries, keys
-- The last yes or no of a person that settled a question, while its outcome is the last thing that the bot said. The same
-- answer again then repeats it, and says nothing new. The conversation's field 'settled_answer' holds: the person, the numbers
-- of the first and the last reply with the outcome, when the turn was committed, and the answer as Python wrote it.

local function note_settled(user, answer, first, last)
  local settled = {user = user, answer = answer, first = first, last = last, at = string.format('%d', now())}
  redis.call('HSET', conversation_key, 'settled_answer', cjson.encode(settled))
end

-- Return the answer as JSON for a turn that its person sent at `received`. Return '' if the bot has said something else
-- since, if the outcome may not have arrived, or if the turn came in later than REPEAT_MS.
local function settled_answer(user, received)
  local stored = redis.call('HGET', conversation_key, 'settled_answer')
  local settled = stored and cjson.decode(stored) or {}
  if settled.user ~= user or tonumber(settled.last) ~= conversation_number('last_reply') then return '' end
  if received - tonumber(settled.at) > REPEAT_MS then return '' end
  for number = tonumber(settled.first), tonumber(settled.last) do
    local state = string.match(redis.call('HGET', deliveries, number) or '', '^%S+')
    if state ~= 'sent' and state ~= 'delivered' and state ~= 'read' then return '' end
  end
  return cjson.encode(settled.answer)
end
