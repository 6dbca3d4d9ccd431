-- needs: actions, channel, conversation, deliveries, inbox, keys, last_message, outbox, settled, timers
-- What the holder of the lease does next: send a reply, else work on a turn, else nothing.
-- args: epoch, token, let_go (release the lease when nothing is left).

-- Return an action by its fields, nil when there is none. Its `loaded_at` is 0: to the holder of the lease no action is
-- stale.
local function action_of_turn(action_id)
  local action = action_id and load_action(action_id)
  if action then action.loaded_at = 0 end
  return action or nil
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

-- Return the first reply, for QueuedReply in Python: `entry` (of the outbox), `attempt` (from 1), `is_doubtful` (1 if it
-- may have arrived), `wait_ms` (until its slot, see `book_slot`), `ahead_ms` (by which its chat is ahead of the rate
-- limit), `receipt` (the platform's id of a doubtful reply that did arrive, or ''), `silence_ms` (see
-- `ms_since_last_turn`), `held_ms` (for how long it has waited for its user to write, -1 when it does not wait) and
-- `closed_reason`.
local function reply_item(reply)
  local item = {
    kind = 'reply', entry = reply, attempt = conversation_number('reply_attempts') + 1, is_doubtful = 0, wait_ms = -1,
    ahead_ms = 0, receipt = '', silence_ms = -1, held_ms = -1, closed_reason = '',
  }
  -- A reply that another conversation sends is forwarded there once, and waits there for the rate limit.
  if string.find(reply, '^%d+ %- {"forward"') then return item end

  local number = string.match(reply, '^%d+')
  item.silence_ms = ms_since_last_turn()
  item.closed_reason = closed_reason()

  -- A held reply is not sent, so it is not noted as being sent.
  local held_at = held_since()
  if held_at then
    item.is_doubtful = redis.call('HEXISTS', conversation_key, 'suspect:' .. number)
    item.held_ms = now() - held_at
    return item
  end

  item.is_doubtful = note_sending(reply)
  item.ahead_ms = math.max(0, conversation_number('chat_free_at') - now())
  item.wait_ms = book_slot(number)
  if item.is_doubtful == 1 then item.receipt = arrived_receipt(number) end
  return item
end

-- Return how many holders of the lease got this turn before. Each counts as an attempt, unless it released the lease. A
-- turn that waited in a backup is given up.
local function count_attempt(turn)
  local seq = string.match(turn, '^%d+')
  local epoch, begun, restored = unpack(redis.call('HMGET', conversation_key, 'epoch', 'turn_attempts', 'last_restored_turn'))
  if restored and tonumber(seq) <= tonumber(restored) then return GIVEN_UP end
  local last_seq, last_epoch, times = string.match(begun or '', '^(%d+) (%d+) (%d+)$')
  if last_seq ~= seq then last_epoch, times = '', 0 end
  if last_epoch == epoch then return tonumber(times) end
  redis.call('HSET', conversation_key, 'turn_attempts', seq .. ' ' .. epoch .. ' ' .. times + 1)
  return times + 1
end

-- Return the turns right behind the first one that are of the same user and no taps: they may be answered together.
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

-- Return the first turn, for QueuedTurn in Python: `entry` (of the inbox), `open_action` and `tapped_action` (left out
-- when there is none), `history` (as JSON, or ''), `following` (entries of the inbox), `waiting` (turns, with this one),
-- `stop_seq` (number of the user's last /stop, or 0), `timers` and `journal` (as JSON), `attempt` (from 1), `age_ms`,
-- `lost_at` (in Unix milliseconds, or 0), `is_loss_told` (0 or 1) and `last_answer` (as JSON, or '').
local function turn_item(turn)
  local received_at, user, tapped_id = string.match(turn, '^%d+ (%d+) (%S+) (%S+) ')
  local lost_at, is_loss_told = loss_of(user)
  return {
    kind = 'turn',
    entry = turn,
    open_action = action_of_turn(redis.call('GET', open_action_key(user))),
    tapped_action = action_of_turn(tapped_id),
    history = redis.call('GET', history_key(user)) or '',
    following = following_turns(user, tapped_id),
    waiting = redis.call('LLEN', inbox),
    stop_seq = conversation_number(stop_field(user)),
    timers = redis.call('HVALS', timer),
    journal = redis.call('LRANGE', journal, 0, -1),
    attempt = count_attempt(turn),
    age_ms = now() - received_at,
    lost_at = lost_at,
    is_loss_told = is_loss_told,
    last_answer = settled_answer(user, tonumber(received_at)),
  }
end

-- Return what the holder of the lease does next. Its `kind` is 'reply', 'turn' or 'idle'.
local function next_item()
  local reply = redis.call('LINDEX', outbox, 0)
  if reply then return reply_item(reply) end

  local turn = redis.call('LINDEX', inbox, 0)
  if turn then return turn_item(turn) end
  return {kind = 'idle'}
end

-- Return what is next. If nothing is, release the lease in the same step, where the worker asks for it.
local function next_item_or_release()
  local item = next_item()
  if args.let_go and item.kind == 'idle' then
    redis.call('HSET', conversation_key, 'token', '', 'lease_until', 0, 'turn_attempts', '',
      'released_by', args.epoch .. ':' .. args.token)
    wait_for_timer()
  end
  return item
end
