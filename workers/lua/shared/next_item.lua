-- needs: actions, channel, conversation, deliveries, inbox, keys, last_message, outbox, settled, stops, timers
-- What the holder of the lease does next: send a reply, else answer a turn, else nothing.
--
-- args:
--   epoch, token   of the worker's lease
--   let_go         true if the lease is released when nothing is left to do

-- Return an action as the turn reads it, nil if there is none. The holder of the lease takes no
-- action for stale, however long ago it was begun: so `loaded_at` is 0.
local function action_of_turn(action_id)
  if not action_id then return nil end
  local action = load_action(action_id)
  if action then action.loaded_at = 0 end
  return action
end

-- Return whether the user who was asked by an action will read the reply as a further message. An
-- edit that is left out where it is impossible adds no message, and in a group some replies are
-- shown to another person only.
local function is_read_by_asked_user(record, action_id)
  local fields = cjson.decode(record)
  local reply = cjson.decode(fields.reply)
  if reply.edits and reply.optional then return false end
  if not fields.reader then return true end
  return fields.reader == redis.call('HGET', action_key(action_id), 'user')
end

-- A reply begins to be sent. The question that was the bot's last message is so no longer, unless
-- the reply belongs to it.
local function note_message(reply, last_question)
  if not last_question or last_question == '' or reply.action_id == last_question then return end
  if is_read_by_asked_user(reply.record, last_question) then follow_question() end
end

-- Note that the holder of the lease begins to send a reply. Return whether the reply may have
-- arrived already: an earlier holder got it, and has neither recorded its end nor postponed it. The
-- conversation's field 'sending' is "number:epoch".
local function note_sending(reply)
  local epoch, sending, last_question =
    unpack(redis.call('HMGET', conversation_key, 'epoch', 'sending', 'last_question'))
  note_message(reply, last_question)

  local number = reply.number
  local this_sending = number .. ':' .. epoch
  local was_being_sent = sending and string.match(sending, '^%d+') == number
  if was_being_sent and sending ~= this_sending then
    redis.call('HSET', conversation_key, 'suspect:' .. number, 1)
  end
  redis.call('HSET', conversation_key, 'sending', this_sending)
  return redis.call('HEXISTS', conversation_key, 'suspect:' .. number) == 1
end

-- Return the first reply of the outbox, for `QueuedReply` in Python. Absent values are nil.
--   entry              the entry of the outbox
--   attempt            the number of this attempt, from 1
--   is_doubtful        true if the reply may have arrived already
--   wait_ms            until its slot; nil where no rate limit is known
--   rate_is_elsewhere  true if the rate limit of the channel is on another node
--   ahead_ms           by how much its chat is ahead of the chat's rate limit
--   receipt            the platform's id of a doubtful reply that did arrive, else ''
--   silence_ms         since a user wrote here, or 'never' or 'unknown'
--   held_ms            for how long the reply has waited for its user to write; nil if it does not
--                      wait
--   closed_reason      why the address takes no messages, '' if it takes them
local function reply_item(entry)
  local item = {
    kind = 'reply',
    entry = entry,
    attempt = conversation_number('reply_attempts') + 1,
    is_doubtful = false,
    rate_is_elsewhere = false,
    ahead_ms = 0,
    receipt = '',
    silence_ms = 'unknown',
    closed_reason = '',
  }
  -- It is moved to the other conversation at once, and waits there for the rate limit.
  if is_for_another_conversation(entry) then return item end

  local reply = parse_reply(entry)
  item.silence_ms = ms_since_last_turn()
  item.closed_reason = closed_reason()

  -- A held reply is not sent, so it is not noted as being sent.
  local hold = current_hold()
  if hold then
    item.is_doubtful = redis.call('HEXISTS', conversation_key, 'suspect:' .. reply.number) == 1
    item.held_ms = now() - hold.since
    return item
  end

  item.is_doubtful = note_sending(reply)
  item.ahead_ms = math.max(0, conversation_number('chat_free_at') - now())
  item.wait_ms = book_slot(reply.number)
  item.rate_is_elsewhere = in_cluster
  if item.is_doubtful then item.receipt = arrived_receipt(reply.number) end
  return item
end

-- Return the number of this attempt at a turn, from 1. Each holder of the lease that got the turn
-- counts as an attempt, unless it released the lease. A turn that waited in a backup gets GIVEN_UP.
-- The conversation's field 'turn_attempts' is "seq epoch attempts".
local function count_attempt(seq)
  local epoch, stored, last_restored = unpack(redis.call(
    'HMGET', conversation_key, 'epoch', 'turn_attempts', 'last_restored_turn'))
  if last_restored and seq <= tonumber(last_restored) then return GIVEN_UP end

  local counted_seq, counted_epoch, attempts = string.match(stored or '', '^(%d+) (%d+) (%d+)$')
  if tonumber(counted_seq) ~= seq then
    counted_epoch = nil
    attempts = 0
  end
  if counted_epoch == epoch then return tonumber(attempts) end

  attempts = attempts + 1
  redis.call('HSET', conversation_key, 'turn_attempts', seq .. ' ' .. epoch .. ' ' .. attempts)
  return attempts
end

-- Return the entries right behind the first one that are of the same user and tap no button: these
-- turns may be answered together.
local function following_turns(first)
  local following = {}
  if first.tapped_action_id then return following end

  for _, entry in ipairs(redis.call('LRANGE', inbox, 1, MAX_BURST - 1)) do
    local turn = parse_turn(entry)
    if turn.user ~= first.user or turn.tapped_action_id then break end
    following[#following + 1] = entry
  end
  return following
end

-- Return when the server was resumed after a loss of data (Unix milliseconds, 0 if not lately), and
-- whether this user was told of the loss in answer to a yes or no.
local function loss_of(user)
  local resumed_at = redis.call('GET', shard .. ':resumed')
  if not resumed_at then return 0, false end
  local is_told = redis.call('HEXISTS', loss_key(), 'answered:' .. user) == 1
  return tonumber(resumed_at), is_told
end

-- Return the first turn of the inbox, for `QueuedTurn` in Python. Absent values are nil.
--   entry          the entry of the inbox
--   open_action    the action that occupies the user's scope; nil if there is none
--   tapped_action  the action whose button the turn taps; nil if there is none
--   history        of the user in this conversation, as JSON, '' for none
--   following      the entries of turns that may be answered together with this one
--   waiting        how many turns wait, with this one
--   stop_seq       the number of the user's last /stop, 0 for none
--   timers         of the conversation, as JSON
--   journal        the entries of the turn's journal, which earlier attempts have written
--   attempt        the number of this attempt, from 1
--   age_ms         since the turn was received
--   lost_at        when the server was resumed after a loss of data (Unix milliseconds), 0 if not
--                  lately
--   is_loss_told   true if this user was told of the loss in answer to a yes or no
--   last_answer    the user's last yes or no, as JSON, '' unless the turn may repeat it
local function turn_item(turn)
  local lost_at, is_loss_told = loss_of(turn.user)
  return {
    kind = 'turn',
    entry = turn.entry,
    open_action = action_of_turn(redis.call('GET', open_action_key(turn.user))),
    tapped_action = action_of_turn(turn.tapped_action_id),
    history = redis.call('GET', history_key(turn.user)) or '',
    following = following_turns(turn),
    waiting = redis.call('LLEN', inbox),
    stop_seq = conversation_number(stop_field(turn.user)),
    timers = redis.call('HVALS', timer),
    journal = redis.call('LRANGE', journal, 0, -1),
    attempt = count_attempt(turn.seq),
    age_ms = now() - turn.received_at,
    lost_at = lost_at,
    is_loss_told = is_loss_told,
    last_answer = settled_answer(turn.user, turn.received_at),
  }
end

-- Return what the holder of the lease does next. Its `kind` is 'reply', 'turn' or 'idle'.
--
-- A turn waits until all replies were sent. It does not wait for a reply that is held: no message of
-- the user can be among the turns then, only what other people decide, or a time that has come.
local function next_item()
  local reply = redis.call('LINDEX', outbox, 0)
  local turn = first_turn()
  if reply and not (turn and current_hold()) then return reply_item(reply) end
  if turn then return turn_item(turn) end
  return {kind = 'idle'}
end

-- Return what is next. If nothing is, release the lease in the same step, where the worker asks for
-- that.
local function next_item_or_release()
  local item = next_item()
  if args.let_go and item.kind == 'idle' then
    redis.call('HSET', conversation_key, 'token', '', 'lease_until', 0, 'turn_attempts', '',
      'released_by', args.epoch .. ':' .. args.token)
    wait_for_timer()
  end
  return item
end
