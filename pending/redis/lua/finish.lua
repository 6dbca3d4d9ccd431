-- needs: actions, conversation, keys, outbox
-- Record the truth about an effect. No fence: it may be told late, by a worker that lost its lane.
-- ARGV: conversation, action, attempt, state, what the user is told, the tool's result, the correction to send if it
-- comes too late, number of the deciding turn.
local key = action_key(ARGV[2])
local state, attempt, plan, by, mac, steps =
  unpack(redis.call('HMGET', key, 'state', 'attempt', 'plan', 'by', 'mac', 'steps'))
if attempt ~= ARGV[3] then return 'other' end
if state == ARGV[4] then return 'ok' end
-- "Failed" is corrected too: somebody may have asked the world too early and been told that nothing had happened.
local late = (state == 'unknown' and ARGV[4] == 'failed') or ((state == 'unknown' or state == 'failed') and ARGV[4] == 'done')
if state ~= 'started' and not late then return 'other' end
redis.call('HSET', key, 'state', ARGV[4], 'told', ARGV[5], 'result', ARGV[6])
entered(ARGV[2], {ARGV[4]}, by, mac, steps)
if not late then return 'ok' end
if string.match(redis.call('LINDEX', inbox, 0) or '', '^%d+') == ARGV[8] then
  -- Its user was told nothing yet: whoever works on that turn must find that his words are not true any more.
  if plan then redis.call('HSET', action_key(plan), 'late', '1') end
  return 'late'
end
if ARGV[7] ~= '' then
  local busy = is_worker_expected()
  append_reply('-', ARGV[7])
  keep_conversation()
  if not busy then redis.call('ZADD', due, now(), conversation) end
end
return 'late'
