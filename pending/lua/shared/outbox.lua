-- needs: conversation, keys, records
-- The outbox of a conversation: the replies that wait, the oldest one first.
--
-- An entry is the text "number header record": the number of the reply, a header, and the reply
-- with its address as JSON. The header is JSON without spaces: the `action_id` and the `role` of a
-- reply that belongs to an action (`ReplyRole` in Python explains the roles), {} for any other
-- reply. It is apart from the record, so that a script need not parse the text of the reply.
--
-- A reply is held if its platform takes it only after the user has written again. Then no worker
-- comes for it until the user writes.

-- Return the parts of an entry by name. `number` is a text. `action_id` and `role` are nil for a
-- reply that belongs to no action. All are nil for the text ''.
local function parse_reply(entry)
  local number, header, record = string.match(entry, '^(%d+) (%S+) (.*)$')
  local fields = cjson.decode(header or '{}')
  return {number = number, action_id = fields.action_id, role = fields.role, record = record}
end

-- Return the number of the first reply that waits, as text. Return nil if none waits.
local function first_reply_number()
  local entry = redis.call('LINDEX', outbox, 0)
  if not entry then return nil end
  return string.match(entry, '^%d+')
end

-- Return whether an entry is a reply that another conversation sends: it is only moved there.
local function is_for_another_conversation(entry)
  return string.find(entry, '^%d+ {} {"forward"') ~= nil
end

-- Let a reply take the place of an earlier one that has the same collapse key: of these, only the
-- newest is sent. Return the number of the earlier reply, nil if there is none. An earlier reply
-- that is being sent, or may have arrived, stays. `key_text`: the text with which the record of
-- each such reply begins.
local function replace_collapsed(key_text, reply)
  local being_sent = string.match(redis.call('HGET', conversation_key, 'sending') or '', '^%d+')
  for at, entry in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
    local number, record = string.match(entry, '^(%d+) {} (.*)$')
    local is_replaceable = number
      and number ~= being_sent
      and string.sub(record, 1, #key_text) == key_text
      and redis.call('HEXISTS', conversation_key, 'suspect:' .. number) == 0
    if is_replaceable then
      redis.call('LSET', outbox, at - 1, number .. ' {} ' .. reply)
      return number
    end
  end
end

-- Append a reply to the outbox and return its number, as text. `reply`: its record, to which the
-- time is added. `action_id` and `role`: the action that it belongs to, and what it says about that
-- action; nil for a reply that belongs to none.
local function append_reply(reply, action_id, role)
  local record = string.format('%s, "at": %d}', string.sub(reply, 1, -2), now())
  local key_text = string.match(record, '^{"collapse": "[^"]+"')
  if key_text and not action_id then
    local replaced = replace_collapsed(key_text, record)
    if replaced then return replaced end
  end

  local number = next_number('last_reply')
  local header = cjson.encode({action_id = action_id, role = role})
  local waiting = redis.call('RPUSH', outbox, number .. ' ' .. header .. ' ' .. record)
  if waiting == 1 then redis.call('PEXPIRE', outbox, KEEP_CONVERSATION_MS) end
  return tostring(number)
end

-- Put a reply in front of all others, such as one that is held, and return its number, as text. No
-- reply may be being sent. The arguments are those of `append_reply`.
local function prepend_reply(reply, action_id, role)
  local record = string.format('%s, "at": %d}', string.sub(reply, 1, -2), now())
  local number = next_number('last_reply')
  local header = cjson.encode({action_id = action_id, role = role})
  local waiting = redis.call('LPUSH', outbox, number .. ' ' .. header .. ' ' .. record)
  if waiting == 1 then redis.call('PEXPIRE', outbox, KEEP_CONVERSATION_MS) end
  return tostring(number)
end

-- Return an outbox entry changed so that its reply replaces the message with this platform id.
local function replacing(entry, message)
  local record = cjson.decode(entry)
  local reply = cjson.decode(record.reply)
  reply.edits = message
  record.reply = cjson.encode(reply)
  return encode_record(record)
end

-- A sorted set of the whole shard: the conversations whose first reply is held, and since when.
local held_conversations = shard .. ':held_conversations'

-- Return how the first reply is held: `since` (Unix milliseconds) and `reason`, for operators.
-- Return nil if it is not held, or if the user has written since. The conversation's field
-- 'held_reply' is JSON with these and with the `number` of the reply and the `last_turn` of that
-- time.
local function current_hold()
  local stored = redis.call('HGET', conversation_key, 'held_reply')
  if not stored then return nil end

  local hold = cjson.decode(stored)
  if hold.last_turn ~= conversation_number('last_turn') then return nil end
  if first_reply_number() ~= tostring(hold.number) then return nil end
  return hold
end

-- Hold the first reply no longer.
local function clear_hold()
  local was_held = redis.call('HDEL', conversation_key, 'held_reply') == 1
  if was_held then redis.call('ZREM', held_conversations, conversation) end
end

-- Return whether a worker has the conversation or will come, because it was woken or the
-- conversation waits to try a reply again. Neither a timer nor a held reply brings a worker at
-- once.
local function is_worker_expected()
  local is_due = redis.call('ZSCORE', due, conversation)
  if not is_due then return false end
  if conversation_number('lease_until') > now() then return true end
  return has_work() and not current_hold()
end
