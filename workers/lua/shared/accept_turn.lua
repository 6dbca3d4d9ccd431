-- needs: actions, conversation, inbox, keys, outbox, overload, queue, stops
-- Accept a turn: store it once at the end of its conversation's inbox, and wake a worker.
--
-- A turn is one thing that a person did: a message, a tap on a button, an edit.
--
-- args:
--   event              digest of the event's id, which is the same each time the platform sends it
--   message            digest of the message's id, '' if unknown
--   content            digest of what the message shows, '' if unknown
--   edit               true if the turn is an edit of an earlier message
--   user               the id of the scope: who wrote, and in which conversation
--   tapped_action_id   the action whose button was tapped, '' for none
--   addressed          false if the turn counts only where the bot takes part already
--   chat_barred        true if the bot may not write in any thread of the chat
--   chat_key           the key that says so instead of `chat_barred`, '' where it is on another
--                      node
--   stop               true if the user says /stop
--   tap                true if the turn is a tap on a button
--   tap_or_status      true if the turn is a tap or asks for the status
--   waited_ms          how long the turn waited elsewhere before it came here
--   seen_ms            how long the event is remembered
--   max_waiting        how many turns may wait in this conversation
--   max_conversations  how many conversations of this shard may have work
--   per_minute         turns of one user in a minute
--   in_one_go          how many of these may come at once
--   ARGV[2]            the turn as JSON; from ARGV[3]: the hash of the RQ job

-- Count for `sayso trace` how often the platform has sent a turn again. The fields of the last
-- MAX_ANSWERED turns are used in turn, so a field may still hold the count of an older one.
local function count_repetition(seq)
  local field = 'again:' .. seq % MAX_ANSWERED
  local counted = redis.call('HGET', turn_records, field) or ''
  local counted_seq, times = string.match(counted, '^(%d+) (%d+)$')
  if counted_seq ~= seq then times = 0 end
  redis.call('HSET', turn_records, field, seq .. ' ' .. times + 1)
  redis.call('PEXPIRE', turn_records, KEEP_DELIVERY_MS)
end

-- A string: what a message showed last, as 'edit' or 'message' and the digest of its content.
local function content_key()
  return shard .. ':content:' .. conversation .. ':' .. args.message
end

-- Return whether the turn changes nothing that people see. Platforms report as an edit what leaves
-- the text as it was: a reaction, a link preview. And a message that arrives after its own edit is
-- out of date.
local function is_unchanged()
  if args.content == '' then return false end
  local shown = redis.call('GET', content_key()) or ''
  local kind, content = string.match(shown, '^(%a+) (.*)$')
  return content == args.content or (kind == 'edit' and not args.edit)
end

local function store_content()
  if args.content == '' then return end
  local kind = args.edit and 'edit' or 'message'
  redis.call('SET', content_key(), kind .. ' ' .. args.content, 'PX', args.seen_ms)
end

-- Return whether the bot may not write in any thread of this chat.
local function is_chat_barred()
  if args.chat_key == '' then return args.chat_barred end
  return tonumber(redis.call('HGET', args.chat_key, 'barred_until') or '0') > now()
end

-- Count the turn against a rate limit, by its name. Return true, and count nothing, if the limit is
-- used up. The key holds the time at which the whole limit is available again.
local function is_too_fast(limit_name, per_minute, in_one_go)
  local key = shard .. ':rate_limit:' .. conversation .. ':' .. limit_name
  local interval = 60000 / per_minute
  local whole_at = math.max(tonumber(redis.call('GET', key) or '0'), now()) + interval
  if whole_at - now() > interval * in_one_go then return true end

  local ttl = string.format('%d', whole_at - now() + 1000)
  redis.call('SET', key, string.format('%d', whole_at), 'PX', ttl)
  return false
end

-- Return whether a turn of this user waits or is being worked on.
local function has_turn()
  for _, entry in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
    if parse_turn(entry).user == args.user then return true end
  end
  return false
end

-- Return whether the inbox has no place for the turn. Beyond its limit there are URGENT_PLACES for
-- urgent turns, a few of them for each user. `waiting`: how many turns wait.
local function is_full(waiting, is_urgent)
  if waiting < args.max_waiting then return false end
  if not is_urgent or waiting >= args.max_waiting + URGENT_PLACES then return true end

  local own = 0
  for _, entry in ipairs(redis.call('LRANGE', inbox, args.max_waiting, -1)) do
    if parse_turn(entry).user == args.user then own = own + 1 end
  end
  return own >= URGENT_PLACES_EACH
end

-- Append the turn to the inbox. Return its number.
local function append_turn()
  local seq = next_number('last_turn')
  local received_at = now() - args.waited_ms
  append_to_inbox({
    seq = seq,
    received_at = received_at,
    user = args.user,
    tapped_action_id = args.tapped_action_id,
    json = ARGV[2],
  })
  redis.call('SET', event_key(args.event), seq, 'PX', args.seen_ms)
  store_content()

  -- A turn that waited elsewhere may be older than one that is here already.
  local user_message_at = math.max(conversation_number('user_message_at'), received_at)
  redis.call('HSET', conversation_key, 'user_message_at', user_message_at)
  keep_conversation()
  return seq
end

-- Stop the user's turn that waits or is being worked on.
local function stop_turn(seq)
  redis.call('HSET', conversation_key, stop_field(args.user), seq)
  -- Where the login may not publish, the worker learns of the stop when it renews its lease.
  redis.pcall('PUBLISH', shard .. ':stop', conversation)
end

-- Accept the turn. Return its outcome in one word (`Outcome` in Python). The words 'new' and
-- 'duplicate' are followed by a space and the number of the turn.
local function accept_turn()
  local earlier_seq = redis.call('GET', event_key(args.event))
  if earlier_seq then
    count_repetition(earlier_seq)
    return 'duplicate ' .. earlier_seq
  end
  if is_unchanged() then return 'unchanged' end

  -- A conversation to which others only forward replies exists too, but has received no turn.
  local takes_part = redis.call('HEXISTS', conversation_key, 'last_turn') == 1
  if not args.addressed and not takes_part then return 'ignored' end

  -- Where the bot may not write, the answer to a message would reach no person. What decides about
  -- an action still counts.
  local has_question = redis.call('EXISTS', open_action_key(args.user)) == 1
  local decides = args.tap or args.stop or has_question
  local chat_barred = is_chat_barred()
  local is_barred = chat_barred or conversation_number('barred_until') > now()
  if is_barred and not decides then return 'ignored' end

  -- A tap on another user's button is answered a few times, so that it cannot delay those who may
  -- decide.
  local asked_user = args.tapped_action_id ~= ''
    and redis.call('HGET', action_key(args.tapped_action_id), 'user')
  local is_own = not asked_user or asked_user == args.user
  -- A request in a group is to each of its members: their taps have the limit of messages.
  local is_foreign = not is_own and asked_user ~= ANYONE_USER
  if args.tap and is_foreign and args.waited_ms == 0 then
    local limit_name = args.user .. ':foreign'
    if is_too_fast(limit_name, FOREIGN_TAPS_PER_MINUTE, FOREIGN_TAPS_IN_ONE_GO) then
      return 'ignored'
    end
  end

  -- Urgent are the answer of a user who was asked something, and the first stop of the user's own
  -- turn. Urgent turns do not count against the rate limit and may use reserved places.
  local stops_turn = args.stop and has_turn()
  local is_first_stop = stops_turn and conversation_number(stop_field(args.user)) == 0
  local answers_question = is_own and (asked_user or has_question)
  local is_urgent = is_first_stop or answers_question

  local waiting = redis.call('LLEN', inbox)
  if is_full(waiting, is_urgent) then return 'full' end

  -- Only a conversation without waiting turns can be refused as overloaded: its outbox may hold
  -- just the refusal notice.
  local shares = (is_urgent or args.stop) and 2 or 0
  if waiting == 0 and is_overloaded(args.max_conversations, shares) then return 'overloaded' end

  -- Taps and questions for the status have a limit of their own. A turn that waited elsewhere was
  -- not sent faster than another.
  local limit_name
  if args.tap_or_status and is_own then
    limit_name = args.user .. ':quick'
  elseif not is_urgent then
    limit_name = args.user
  end
  if limit_name and args.waited_ms == 0 then
    if is_too_fast(limit_name, args.per_minute, args.in_one_go) then return 'too_fast' end
  end

  local was_expected = is_worker_expected()
  local seq = append_turn()
  if stops_turn then stop_turn(seq) end
  -- If the answer of this turn is sent, the bot may write in the chat again.
  if chat_barred then redis.call('HSET', conversation_key, 'in_barred_chat', 1) end

  -- A turn that must not wait is queued before others, unless a worker is at work here already.
  local is_hurried = is_urgent or args.stop or (args.tap and is_own)
  local is_leased = conversation_number('lease_until') > now()
  if not was_expected or (is_hurried and not is_leased) then wake_worker(3, is_hurried) end
  return 'new ' .. seq
end
