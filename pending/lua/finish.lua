-- needs: actions, conversation, keys, outbox, states
-- Save how the effect of an action ended. No lease is needed: a worker that lost it may report late.
-- args: action_id, attempt_id (of the start that ended), state ('done', 'failed' or 'unknown'), outcome_text (what the
-- user is told), result (of the tool, for the user), output (what a model reads of it, '' for the same), correction (the
-- outbox entry to send if the truth comes too late, or ''), seq (number of the deciding turn).
-- Returns 'ok', 'late' (the action had ended otherwise) or 'other' (nothing was changed).
local key = action_key(args.action_id)
local state, attempt, plan, by, mac, steps =
  unpack(redis.call('HMGET', key, 'state', 'attempt_id', 'plan', 'decided_by_event', 'mac', 'steps'))
if attempt ~= args.attempt_id then return 'other' end
if state == args.state then return 'ok' end
-- A failure is corrected too: a check may have come too early and found that nothing had happened.
local late = (state == 'unknown' and args.state == 'failed')
  or ((state == 'unknown' or state == 'failed') and args.state == 'done')
if state ~= 'started' and not late then return 'other' end
redis.call('HSET', key, 'state', args.state, 'outcome_text', args.outcome_text, 'result', args.result, 'output', args.output)
entered(args.action_id, {args.state}, by, mac, steps)
if not late then return 'ok' end
if tonumber(string.match(redis.call('LINDEX', inbox, 0) or '', '^%d+')) == args.seq then
  -- The user was told nothing yet. The worker of that turn must find that its answer is not true any more.
  if plan then redis.call('HSET', action_key(plan), 'late_result', '1') end
  return 'late_result'
end
if args.correction ~= '' then
  local busy = is_worker_expected()
  append_reply('-', args.correction)
  keep_conversation()
  if not busy then redis.call('ZADD', due, now(), conversation) end
end
return 'late_result'
