-- Ring the timers of a conversation that is overdue, and wake whoever sends that, or missed an earlier wake-up. ARGV:
-- conversation, RQ job... Returns 'ok' when somebody is woken.
local score = redis.call('ZSCORE', due, conversation)
if not score or tonumber(score) > now() then return 'not due' end
ring()
if not has_work() then
  rest()
  return 'idle'
end
return wake(2) and 'ok' or 'queued'
