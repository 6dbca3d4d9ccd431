-- Repeat the wake-up of a conversation that is overdue. ARGV: conversation, RQ job...
local score = redis.call('ZSCORE', due, conversation)
if not score or tonumber(score) > now() then return 'not due' end
if not has_work() then
  redis.call('ZREM', due, conversation)
  return 'idle'
end
wake(2)
return 'ok'
