-- needs: conversation, deliveries, keys
-- The last yes or no that settled a question, while its outcome is the last thing that the bot
-- said. If the person gives the same answer again, the bot repeats the outcome and decides nothing
-- new.
--
-- The conversation's field 'settled_answer' is JSON: `user` (who answered), `answer` (as Python
-- wrote it), `first` and `last` (the numbers of the first and the last reply with the outcome), and
-- `at` (when the turn was committed, in Unix milliseconds as text).

local function store_settled(user, answer, first, last)
  local at = string.format('%d', now())
  local settled = {user = user, answer = answer, first = first, last = last, at = at}
  redis.call('HSET', conversation_key, 'settled_answer', cjson.encode(settled))
end

-- Return whether all replies with the outcome have arrived.
local function has_outcome_arrived(settled)
  for number = tonumber(settled.first), tonumber(settled.last) do
    local delivery = load_delivery(number)
    if not delivery or not has_arrived(delivery) then return false end
  end
  return true
end

-- Return the answer as JSON, for a turn of this user that came in at `received_at`. Return '' if
-- the bot has said something else since, if the outcome may not have arrived, or if the turn came
-- in more than REPEAT_MS later.
local function settled_answer(user, received_at)
  local stored = redis.call('HGET', conversation_key, 'settled_answer')
  if not stored then return '' end

  local settled = cjson.decode(stored)
  if settled.user ~= user then return '' end
  if tonumber(settled.last) ~= conversation_number('last_reply') then return '' end
  if received_at - tonumber(settled.at) > REPEAT_MS then return '' end
  if not has_outcome_arrived(settled) then return '' end
  return cjson.encode(settled.answer)
end
