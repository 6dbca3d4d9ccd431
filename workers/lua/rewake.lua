-- Ring the timers of a conversation that is overdue, and wake whoever sends that, or missed an earlier wake-up. ARGV: conversation, RQ job...
local score = redis.call('ZSCORE', due, conversation)
if not score or tonumber(score) > now() then return 'not due' end
ring()
if not has_work() then
  rest()
  return 'idle'
end
wake(2)
return 'ok'
