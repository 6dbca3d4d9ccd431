-- Record the truth about an effect. No fence: it may be told late, by a worker that lost its lane.
-- ARGV: conversation, action, attempt, state, what the user is told, the correction to send if it comes too late.
local key = record(ARGV[2])
local state = redis.call('HGET', key, 'state')
if redis.call('HGET', key, 'attempt') ~= ARGV[3] then return 'other' end
if state == 'started' then
  set_state(ARGV[2], ARGV[4], ARGV[5])
  return 'ok'
end
if state == 'unknown' and ARGV[4] ~= 'unknown' then
  set_state(ARGV[2], ARGV[4], ARGV[5])
  if ARGV[6] ~= '' then
    say('-', ARGV[6])
    keep()
    redis.call('ZADD', due, 'NX', now(), conversation)
  end
  return 'late'
end
return state == ARGV[4] and 'ok' or 'other'
