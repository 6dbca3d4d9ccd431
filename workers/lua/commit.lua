-- needs: actions, changes, conversation, inbox, keys, next_item, outbox, settled, timers
-- Finish a turn, or several that were answered together: store all that it changes, or nothing. An action that the turn
-- claimed and did not settle ends in any case.
-- args: epoch and token (of the lease), seq (number of the turn), last (number of the last turn that was answered with
-- it), user (the id of the scope), event (the id of the turn's event), let_go (release the lease when nothing is left),
-- change (`TurnChange.to_dict` in Python; what is absent there does not change), record (how the turn was answered, as
-- JSON without its first brace).
-- Returns JSON: `status` and, if that is 'ok', `next_item` (what the holder of the lease does next). Any other status
-- says why nothing was changed: 'lost' (the lease), 'moved' (the turn is not the first one), 'state' (of the action),
-- 'exists' (another action occupies the scope) or 'timers' (too many).
local change, user = args.change, args.user

-- The call is repeated because its answer was lost: answer the same, and change nothing.
if has_released() then return cjson.encode({status = 'ok', next_item = {kind = 'idle'}}) end
if not holds_lease() then return cjson.encode({status = 'lost'}) end
if conversation_number('last_done_turn') >= args.seq then
  return cjson.encode({status = 'ok', next_item = next_item_or_release()})
end

local head = redis.call('LINDEX', inbox, 0)
if not head or tonumber(string.match(head, '^%d+')) ~= args.seq then return cjson.encode({status = 'moved'}) end

-- End an action that this event claimed and the turn did not settle.
local function end_unsettled(action_id)
  if not action_id then return end
  local decided_by_event = redis.call('HGET', action_key(action_id), 'decided_by_event')
  if decided_by_event == args.event then end_abandoned(action_id) end
end

-- An action that is over occupies its scope until the deciding turn is committed: a turn that is repeated after a crash
-- must find the outcome. Then its timers have nothing to send.
local function free_scope()
  local action_id = redis.call('GET', open_action_key(user))
  if not action_id or OPEN_STATES[redis.call('HGET', action_key(action_id), 'state') or ''] then return end
  redis.call('DEL', open_action_key(user))
  drop_timer('alarm:' .. user)
  drop_timer('end:' .. user)
end

local function has_too_many_timers()
  return #change.timers > 0 and redis.call('ZCARD', timers) + #change.timers - #change.silenced > MAX_TIMERS
end

-- Append the turn in which the agent goes on after the decision about an action. An action has one such turn. Where its
-- person has said /stop, the turn asks no model.
local function append_continuation(next_turn)
  local key = action_key(next_turn.action_id)
  if redis.call('EXISTS', key) == 0 or redis.call('HSETNX', key, 'continued_by_seq', args.seq) == 0 then return end
  local is_stopped = conversation_number(stop_field(user)) > args.last
  local turn = is_stopped and next_turn.stopped_turn or next_turn.turn
  redis.call('RPUSH', inbox, table.concat({next_number('last_turn'), now(), user, next_turn.action_id, turn}, ' '))
  keep_conversation()
end

-- The open action, and the one whose button was tapped.
end_unsettled(redis.call('GET', open_action_key(user)))
end_unsettled(string.match(head, '^%d+ %d+ %S+ (%S+) '))

local refused = refusal_of(change)
if refused then return cjson.encode({status = refused}) end
if has_too_many_timers() then return cjson.encode({status = 'timers'}) end

-- Remove the answered turns. After a resume their numbers have gaps, so they are not counted.
repeat
  redis.call('LPOP', inbox)
  head = redis.call('LINDEX', inbox, 0)
until not head or tonumber(string.match(head, '^%d+')) > args.last
redis.call('DEL', journal)

redis.call('HSET', conversation_key, 'last_done_turn', args.last)
if change.language then redis.call('HSET', conversation_key, 'language', change.language) end
if conversation_number(stop_field(user)) <= args.last then
  redis.call('HDEL', conversation_key, stop_field(user))
end

-- The scope is freed after the change: the action that the turn decided about is over now.
apply_change(change)
free_scope()
if change.continuation then append_continuation(change.continuation) end

if change.history then redis.call('SET', history_key(user), change.history, 'PX', KEEP_CONVERSATION_MS) end

-- The user knows of the loss of data, so the next yes or no is not answered with it again.
if change.tells_loss then
  redis.call('HSET', loss_key(), 'answered:' .. user, 1)
  redis.call('PEXPIRE', loss_key(), KEEP_LOSS_MS)
end

for _, id in ipairs(change.silenced) do drop_timer(id) end
for _, new_timer in ipairs(change.timers) do set_timer(new_timer.id, new_timer.at, new_timer.what) end

local numbers = {}
local first_of_outcome
for at, reply in ipairs(change.replies) do
  numbers[at] = append_reply(reply.action_id, reply.reply)
  if reply.tells_outcome and not first_of_outcome then first_of_outcome = numbers[at] end
end
if change.settles and first_of_outcome then
  note_settled(user, change.settles, first_of_outcome, numbers[#numbers])
end

local record = string.format('{"done":%d,"replies":[%s],%s', now(), table.concat(numbers, ','), args.record)
redis.call('HSET', turn_records, args.seq % MAX_ANSWERED, record)
redis.call('PEXPIRE', turn_records, KEEP_DELIVERY_MS)
return cjson.encode({status = 'ok', next_item = next_item_or_release()})
