-- needs: actions, conversation, inbox, keys, outbox, states
-- Save how the effect of an action ended. No lease is needed: a worker that lost it may report
-- late.
--
-- args:
--   action_id
--   attempt_id     of the start that ended
--   state          'done', 'failed' or 'unknown'
--   outcome_text   what the user is told
--   result         of the tool, for the user
--   output         what a model reads of it, '' if that is `result`
--   correction     the record of the reply to send if the user was told something else, '' for none
--   seq            number of the deciding turn
-- returns: 'ok', or 'other' if nothing was changed: another attempt runs the action, or it ended
--   otherwise.
local key = action_key(args.action_id)
local state, attempt_id, plan, decided_by_event, mac, steps = unpack(redis.call(
  'HMGET', key, 'state', 'attempt_id', 'plan', 'decided_by_event', 'mac', 'steps'))
if attempt_id ~= args.attempt_id then return 'other' end
if state == args.state then return 'ok' end

-- The action was ended already, by a worker that did not know what became of the effect. A failure
-- is corrected, too: a check may have come too early and found that nothing had happened.
local late = (state == 'unknown' and args.state == 'failed')
  or ((state == 'unknown' or state == 'failed') and args.state == 'done')
if state ~= 'started' and not late then return 'other' end

redis.call('HSET', key, 'state', args.state, 'outcome_text', args.outcome_text,
  'result', args.result, 'output', args.output)
entered(args.action_id, {args.state}, decided_by_event, mac, steps)
if not late then return 'ok' end

-- The deciding turn is not committed, so the user was told nothing yet. Its worker must find that
-- its answer about the plan is not true any more (`refusal_of`).
local first = first_turn()
if first and first.seq == args.seq then
  if plan then redis.call('HSET', action_key(plan), 'late_result', 'new') end
  return 'ok'
end

-- The user was told something else, so a correction is sent.
if args.correction ~= '' then
  local was_expected = is_worker_expected()
  append_reply(args.correction)
  keep_conversation()
  if not was_expected then redis.call('ZADD', due, now(), conversation) end
end
return 'ok'
