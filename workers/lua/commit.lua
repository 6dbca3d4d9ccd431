-- needs: actions, changes, conversation, inbox, keys, next_item, outbox, settled, stops, timers
-- Finish a turn, or several that were answered together: store all that it changes, or nothing.
--
-- Replies, history, pending actions and timers are stored in one step, so a worker that dies before
-- it has changed nothing, and its turn is done again. An action that the turn claimed and did not
-- settle ends in any case.
--
-- args:
--   epoch, token   of the worker's lease
--   seq            number of the turn
--   last           number of the last turn that was answered with it
--   user           the id of the scope
--   event_id       the id of the turn's event
--   let_go         true if the lease is released when nothing is left to do
--   change         `TurnChange.to_dict` in Python; what is absent there does not change
--   record         how the turn was answered, as JSON without its first brace
-- returns: JSON with `status` and, if that is 'ok', `next_item` (what the holder of the lease does
--   next). Any other status says why nothing was changed: 'lost' (the lease), 'moved' (the turn is
--   not the first one), 'state' (the action is in another state), 'exists' (another action occupies
--   the scope) or 'timers' (there are too many).
local change = args.change
local user = args.user

-- The call is repeated because its answer was lost: answer the same, and change nothing.
if has_released() then return cjson.encode({status = 'ok', next_item = {kind = 'idle'}}) end
if not holds_lease() then return cjson.encode({status = 'lost'}) end
if conversation_number('last_done_turn') >= args.seq then
  return cjson.encode({status = 'ok', next_item = next_item_or_release()})
end

local first = first_turn()
if not first or first.seq ~= args.seq then return cjson.encode({status = 'moved'}) end

-- End an action that this event claimed and the turn did not settle.
local function end_unsettled(action_id)
  if not action_id then return end
  local decided_by_event = redis.call('HGET', action_key(action_id), 'decided_by_event')
  if decided_by_event == args.event_id then end_abandoned(action_id) end
end

-- Return whether the change sets more timers than a conversation may have.
local function has_too_many_timers()
  if #change.timers == 0 then return false end
  return redis.call('ZCARD', timers) + #change.timers - #change.cancelled_timers > MAX_TIMERS
end

-- Remove the turns that are answered now. After a loss of data their numbers have gaps, so they are
-- not counted.
local function remove_answered_turns()
  repeat
    redis.call('LPOP', inbox)
    local head = first_turn()
  until not head or head.seq > args.last
  redis.call('DEL', journal)
  redis.call('HSET', conversation_key, 'last_done_turn', args.last)
end

-- An action that is over occupies its scope until the deciding turn is committed: a turn that is
-- repeated after a crash must find the outcome. Then its timers have nothing to send.
local function free_scope()
  local action_id = redis.call('GET', open_action_key(user))
  if not action_id then return end
  local state = redis.call('HGET', action_key(action_id), 'state') or ''
  if OPEN_STATES[state] then return end
  redis.call('DEL', open_action_key(user))
  drop_timer('alarm:' .. user)
  drop_timer('end:' .. user)
end

-- Append the turn in which the agent goes on after the decision about an action, or the one that runs
-- an action which a standing yes covers. An action has one turn of each kind. If its person has said /stop, the turn asks no model.
local function append_continuation(continuation)
  local key = action_key(continuation.action_id)
  if redis.call('EXISTS', key) == 0 then return end
  local is_new = redis.call('HSETNX', key, continuation.noted_in, args.seq) == 1
  if not is_new then return end

  local turn = continuation.turn
  if conversation_number(stop_field(user)) > args.last then turn = continuation.stopped_turn end
  append_to_inbox({
    seq = next_number('last_turn'),
    received_at = now(),
    user = user,
    tapped_action_id = continuation.action_id,
    json = turn,
  })
  keep_conversation()
end

-- Append the replies to the outbox. Return their numbers. The first and the last one that tell the
-- outcome of a yes or no are stored with that answer.
local function append_replies()
  local numbers = {}
  local first_of_outcome
  for at, reply in ipairs(change.replies) do
    numbers[at] = append_reply(reply.reply, reply.action_id, reply.role)
    if reply.tells_outcome and not first_of_outcome then first_of_outcome = numbers[at] end
  end
  if change.settles and first_of_outcome then
    store_settled(user, change.settles, first_of_outcome, numbers[#numbers])
  end
  return numbers
end

-- Append what goes to other conversations. It must not wait for a reply that its platform does not
-- take now, so it stands before the replies of this conversation, also before one that is held.
-- Other people are asked about a new action only after its user was told, so their questions stand
-- behind.
local function append_forwards()
  local forwards = change.forwards or {}
  if #change.new_actions > 0 then
    for _, forward in ipairs(forwards) do append_reply(forward) end
    return
  end
  for at = #forwards, 1, -1 do prepend_reply(forwards[at]) end
end

-- Store how the turn was answered, for `sayso trace`. The records of the last MAX_ANSWERED turns
-- are kept.
local function store_turn_record(reply_numbers)
  local replies = table.concat(reply_numbers, ',')
  local record = string.format('{"done":%d,"replies":[%s],%s', now(), replies, args.record)
  redis.call('HSET', turn_records, args.seq % MAX_ANSWERED, record)
  redis.call('PEXPIRE', turn_records, KEEP_DELIVERY_MS)
end

-- The open action, and the one whose button was tapped.
end_unsettled(redis.call('GET', open_action_key(user)))
end_unsettled(first.tapped_action_id)

-- Everything that can be refused is checked before the first change.
local refusal = refusal_of(change)
if refusal then return cjson.encode({status = refusal}) end
if has_too_many_timers() then return cjson.encode({status = 'timers'}) end

remove_answered_turns()
if change.language then redis.call('HSET', conversation_key, 'language', change.language) end
if conversation_number(stop_field(user)) <= args.last then
  redis.call('HDEL', conversation_key, stop_field(user))
end

-- The scope is freed after the change: the action that the turn decided about is over now.
apply_change(change)
free_scope()
if change.continuation then append_continuation(change.continuation) end

if change.history then
  redis.call('SET', history_key(user), change.history, 'PX', KEEP_CONVERSATION_MS)
end

-- The user knows of the loss of data, so the next yes or no is not answered with it again.
if change.tells_loss then
  redis.call('HSET', loss_key(), 'answered:' .. user, 1)
  redis.call('PEXPIRE', loss_key(), KEEP_LOSS_MS)
end

for _, id in ipairs(change.cancelled_timers) do drop_timer(id) end
for _, new_timer in ipairs(change.timers) do
  set_timer(new_timer.id, new_timer.at, new_timer.what)
end

store_turn_record(append_replies())
append_forwards()
return cjson.encode({status = 'ok', next_item = next_item_or_release()})
