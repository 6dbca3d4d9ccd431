-- needs: conversation, keys
-- Replies that wait, and the reply that is held until the user writes.

-- An entry of the outbox is "number action_id JSON", with '-' in place of the id for a reply that asks nothing.

-- Of replies with the same collapse key, only the newest waits: give it the place of the earlier one. Return that one's
-- number. A reply that is being sent, or may have arrived, stays as it is.
local function replace_collapsed(mark, reply)
  local sending = string.match(redis.call('HGET', conversation_key, 'sending') or '', '^%d+')
  for at, waiting in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
    local number, old = string.match(waiting, '^(%d+) %- (.*)$')
    local same = number and number ~= sending and string.sub(old, 1, #mark) == mark
    if same and redis.call('HEXISTS', conversation_key, 'suspect:' .. number) == 0 then
      redis.call('LSET', outbox, at - 1, number .. ' - ' .. reply)
      return number
    end
  end
end

-- Append a reply to the outbox, with the time in its field `at`. Return its number.
local function append_reply(action_id, reply)
  reply = string.format('%s, "at": %d}', string.sub(reply, 1, -2), now())
  local mark = action_id == '-' and string.match(reply, '^{"collapse": "[^"]+"')
  local replaced = mark and replace_collapsed(mark, reply)
  if replaced then return replaced end
  local number = next_number('last_reply')
  local waiting = redis.call('RPUSH', outbox, number .. ' ' .. action_id .. ' ' .. reply)
  if waiting == 1 then redis.call('PEXPIRE', outbox, KEEP_CONVERSATION_MS) end
  return tostring(number)
end

-- The field 'held': number of the reply, number of the last turn at that time, since when, why.
local HELD = '^(%d+) (%d+) (%d+) (.*)$'

-- Return since when the first reply is held, and why. Return nothing if it is not held, or the user has written since.
local function held_since()
  local number, received, since, why = string.match(redis.call('HGET', conversation_key, 'held_reply') or '', HELD)
  if not number or tonumber(received) ~= conversation_number('last_turn') then return end
  if string.match(redis.call('LINDEX', outbox, 0) or '', '^%d+') == number then return tonumber(since), why end
end

local function clear_hold()
  if redis.call('HDEL', conversation_key, 'held_reply') == 1 then redis.call('ZREM', shard .. ':held', conversation) end
end

-- Return whether a worker has the conversation or will come: it was woken, or waits to retry. Neither a timer that is
-- not due nor a held reply brings a worker.
local function is_worker_expected()
  local is_due = redis.call('ZSCORE', due, conversation)
  return is_due and (conversation_number('lease_until') > now() or (has_work() and not held_since()))
end
