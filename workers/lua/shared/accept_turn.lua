-- needs: actions, conversation, inbox, keys, outbox, queue
-- The receipt of a turn.
-- args: event, message and content (digests of the ids of event and message and of what it shows, '' if unknown), edit
-- (whether it is one), user, tapped_action_id (of the tapped button, '-' for none), addressed (without it, the bot must be in
-- the conversation already), chat_barred (the bot may not write in any thread of the chat), chat_key (the key that says
-- so, '' where this server does not have it), stop, tap, tap_or_status,
-- waited_ms (how long the turn waited elsewhere), seen_ms (how long the event is remembered),
-- max_waiting (turns here), max_conversations (of this shard, with work), per_minute and in_one_go (turns of one user).
-- ARGV[2]: the turn as JSON; from ARGV[3]: the hash of the RQ job.

-- Store a turn once and wake its conversation. Return {outcome, number of the turn or '0'}.
local function accept_turn()
  local seen = shard .. ':event:' .. conversation .. ':' .. args.event
  local first = redis.call('GET', seen)
  if first then
    local again = 'again:' .. first % MAX_ANSWERED
    local of, times = string.match(redis.call('HGET', turn_records, again) or '', '^(%d+) (%d+)$')
    redis.call('HSET', turn_records, again, first .. ' ' .. (of == first and times + 1 or 1))
    redis.call('PEXPIRE', turn_records, KEEP_DELIVERY_MS)
    return {'duplicate', first}
  end

  -- A message that was received with the same content was edited without a visible change: a
  -- reaction, a link preview. A message that arrives after its own edit is out of date.
  local shown = args.content ~= '' and shard .. ':content:' .. conversation .. ':' .. args.message
  local kind, content = string.match(shown and redis.call('GET', shown) or '', '^(%a+) (.*)$')
  if content == args.content or (kind == 'edit' and not args.edit) then return {'unchanged', '0'} end

  -- Return whether a turn of this user waits or is being worked on.
  local function has_turn()
    for _, entry in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
      if user_of(entry) == args.user then return true end
    end
    return false
  end

  -- Count a turn against a rate limit. Return true, and count nothing, if the limit is used up. The
  -- key holds the time at which the whole limit is available again.
  local function is_too_fast(limited, per_minute, in_one_go)
    local key, interval = shard .. ':rate_limit:' .. conversation .. ':' .. limited, 60000 / per_minute
    local whole_at = math.max(tonumber(redis.call('GET', key) or '0'), now()) + interval
    if whole_at - now() > interval * in_one_go then return true end
    redis.call('SET', key, string.format('%d', whole_at), 'PX', string.format('%d', whole_at - now() + 1000))
    return false
  end

  -- A conversation to which others only forward replies exists too, but has received no turn.
  if not args.addressed and redis.call('HEXISTS', conversation_key, 'last_turn') == 0 then return {'ignored', '0'} end

  -- Where the bot may not write, the answer to a message would reach no person. What decides about
  -- an action still counts.
  local decides = args.tap or args.stop or redis.call('EXISTS', open_action_key(args.user)) == 1
  local chat_barred = args.chat_barred
  if args.chat_key ~= '' then
    chat_barred = tonumber(redis.call('HGET', args.chat_key, 'barred_until') or '0') > now()
  end
  local barred = chat_barred or conversation_number('barred_until') > now()
  if barred and not decides then return {'ignored', '0'} end

  -- Urgent turns: the answer of a user who was asked something (not a tap on another user's
  -- question), and a stop of the user's own turn. They do not count against the rate limit and may
  -- use reserved places, a few for each user.
  local waiting, cap = redis.call('LLEN', inbox), args.max_waiting
  local asked = args.tapped_action_id ~= '-' and redis.call('HGET', action_key(args.tapped_action_id), 'user')
  local is_own = not asked or asked == args.user
  -- A tap on another user's button is answered a few times, so that it cannot delay those who may
  -- decide.
  if args.tap and not is_own and args.waited_ms == 0
    and is_too_fast(args.user .. ':foreign', FOREIGN_TAPS_PER_MINUTE, FOREIGN_TAPS_IN_ONE_GO) then
    return {'ignored', '0'}
  end
  local stops = args.stop and has_turn() and conversation_number(stop_field(args.user)) == 0
  local urgent = stops or (is_own and (asked or redis.call('EXISTS', open_action_key(args.user)) == 1))
  local function is_full()
    if waiting < cap then return false end
    if not urgent or waiting >= cap + URGENT_PLACES then return true end
    local own = 0
    for _, turn in ipairs(redis.call('LRANGE', inbox, cap, -1)) do
      if user_of(turn) == args.user then own = own + 1 end
    end
    return own >= URGENT_PLACES_EACH
  end
  if is_full() then return {'full', '0'} end
  -- Only a conversation without waiting turns can be refused as overloaded: its outbox may hold
  -- just the refusal notice.
  local shares = (urgent or args.stop) and 2 or 0
  if waiting == 0 and is_overloaded(args.max_conversations, shares) then return {'overloaded', '0'} end
  local quick = args.tap_or_status and is_own  -- these have a limit of their own
  local counted = quick and args.user .. ':quick' or not urgent and args.user
  if args.waited_ms == 0 and counted and is_too_fast(counted, args.per_minute, args.in_one_go) then
    return {'too_fast', '0'}
  end

  local coming, stopped = is_worker_expected(), args.stop and has_turn()
  local seq = next_number('last_turn')
  redis.call('RPUSH', inbox, table.concat({seq, now() - args.waited_ms, args.user, args.tapped_action_id, ARGV[2]}, ' '))
  redis.call('SET', seen, seq, 'PX', args.seen_ms)
  if shown then redis.call('SET', shown, (args.edit and 'edit ' or 'message ') .. args.content, 'PX', args.seen_ms) end
  redis.call('HSET', conversation_key, 'user_message_at', math.max(conversation_number('user_message_at'), now() - args.waited_ms))
  keep_conversation()
  -- If its answer is sent, the bot may write in the chat again.
  if chat_barred then redis.call('HSET', conversation_key, 'in_barred_chat', 1) end
  if stopped then
    redis.call('HSET', conversation_key, stop_field(args.user), seq)
    redis.pcall('PUBLISH', shard .. ':stop', conversation)  -- where it is forbidden, the renewal of the lease tells
  end
  local hurried = urgent or args.stop or (args.tap and is_own)
  if not coming or (hurried and conversation_number('lease_until') <= now()) then wake_worker(3, hurried) end
  return {'new', tostring(seq)}
end
