-- needs: actions, channel, conversation, deliveries, inbox, keys, last_message, outbox, settled, timers
-- What the holder of the lease does next: send a reply, else work on a turn, else nothing.
-- args: epoch, token, let_go (release the lease when nothing is left).

-- Return an action as Python reads it. The time of the look is 0: to the holder of the lease no action is stale.
local function action_of_turn(action_id)
  local fields = action_id and fields_of(action_id) or {}
  return fields[1] and {action_id, 0, unpack(fields)} or {}
end

-- Return whether the user who was asked by this action will read the reply as a message of its own. An edit that is
-- left out where it is impossible adds no message, and in a group some replies are shown to another person only.
local function is_read_by_asked_user(entry, action_id)
  local fields = cjson.decode(entry)
  local reply = cjson.decode(fields.reply)
  if reply.edits and reply.optional then return false end
  return not fields.reader or fields.reader == redis.call('HGET', action_key(action_id), 'user')
end

-- The holder of the lease begins to send a reply: the question before it is followed by another message, unless the
-- reply belongs to that question.
local function note_message(reply, newest)
  local action_id, entry = string.match(reply, '^%d+ [+=]?(%S+) (.*)$')
  if newest and newest ~= '' and action_id ~= newest and is_read_by_asked_user(entry, newest) then follow_question() end
end

-- Return 1 if a reply may have arrived, else 0. The holder sends the reply that it gets at once. So a reply that an
-- earlier holder got, and neither settled nor postponed, may have arrived.
local function note_sending(reply)
  local number = string.match(reply, '^%d+')
  local epoch, sending, newest = unpack(redis.call('HMGET', conversation_key, 'epoch', 'sending', 'last_question'))
  note_message(reply, newest)
  if sending and sending ~= number .. ':' .. epoch and string.match(sending, '^%d+') == number then
    redis.call('HSET', conversation_key, 'suspect:' .. number, 1)
  end
  redis.call('HSET', conversation_key, 'sending', number .. ':' .. epoch)
  return redis.call('HEXISTS', conversation_key, 'suspect:' .. number)
end

-- A reply that another conversation sends is forwarded there once and waits for that one's rate limit. A held reply is
-- not noted as being sent.
local function reply_item(reply)
  local attempt = conversation_number('reply_attempts') + 1
  if string.find(reply, '^%d+ %- {"forward"') then return {'reply', reply, attempt, 0, -1, 0, '', -1, -1, ''} end
  local number, since = string.match(reply, '^%d+'), held_since()
  if since then
    local doubtful = redis.call('HEXISTS', conversation_key, 'suspect:' .. number)
    return {
      'reply', reply, attempt, doubtful, -1, 0, '', ms_since_last_turn(), now() - since, closed_reason(),
    }
  end
  local doubtful, ahead = note_sending(reply), math.max(0, conversation_number('chat_free_at') - now())
  local receipt = doubtful == 1 and arrived_receipt(number) or ''
  return {
    'reply', reply, attempt, doubtful, book_slot(number), ahead, receipt, ms_since_last_turn(), -1, closed_reason(),
  }
end

-- Return how many holders of the lease got this turn before. Each counts as an attempt, unless it released the lease. A
-- turn that waited in a backup is given up.
local function count_attempt(turn)
  local seq = string.match(turn, '^%d+')
  local epoch, begun, restored = unpack(redis.call('HMGET', conversation_key, 'epoch', 'turn_attempts', 'last_restored_turn'))
  if restored and tonumber(seq) <= tonumber(restored) then return GIVEN_UP end
  local last, by, times = string.match(begun or '', '^(%d+) (%d+) (%d+)$')
  if last ~= seq then by, times = '', 0 end
  if by == epoch then return tonumber(times) end
  redis.call('HSET', conversation_key, 'turn_attempts', seq .. ' ' .. epoch .. ' ' .. times + 1)
  return times + 1
end

-- Return the turns right behind the first one that are of the same user and no taps: they may be turn_records together.
local function following_turns(user, tapped)
  local found = {}
  if tapped ~= '-' then return found end
  for _, entry in ipairs(redis.call('LRANGE', inbox, 1, MAX_BURST - 1)) do
    local other, button = string.match(entry, '^%d+ %d+ (%S+) (%S+) ')
    if other ~= user or button ~= '-' then break end
    found[#found + 1] = entry
  end
  return found
end

-- Return when the server was resumed after a loss of data, 0 if not lately, and 1 if this user was told of it in
-- answer to a yes or no.
local function loss_of(user)
  local at = redis.call('GET', shard .. ':resumed')
  if not at then return 0, 0 end
  return tonumber(at), redis.call('HEXISTS', loss_key(), 'answered:' .. user)
end

local function next_item()
  local reply = redis.call('LINDEX', outbox, 0)
  if reply then return reply_item(reply) end
  local turn = redis.call('LINDEX', inbox, 0)
  if not turn then return {'idle'} end
  local at, user, tapped = string.match(turn, '^%d+ (%d+) (%S+) (%S+) ')
  local lost_at, loss_told = loss_of(user)
  return {
    'turn', turn, action_of_turn(redis.call('GET', open_action_key(user))), action_of_turn(tapped),
    redis.call('GET', history_key(user)) or '', following_turns(user, tapped), redis.call('LLEN', inbox),
    conversation_number(stop_field(user)),
    redis.call('HVALS', timer), redis.call('LRANGE', journal, 0, -1), count_attempt(turn), now() - at,
    lost_at, loss_told, settled_answer(user, tonumber(at)),
  }
end

-- Return what is next. If nothing is, release the lease in the same step, where the worker asks for it.
local function next_item_or_release()
  local item = next_item()
  if args.let_go and item[1] == 'idle' then
    redis.call('HSET', conversation_key, 'token', '', 'lease_until', 0, 'turn_attempts', '', 'released_by', args.epoch .. ':' .. args.token)
    wait_for_timer()
  end
  return item
end
