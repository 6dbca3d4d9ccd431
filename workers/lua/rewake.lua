-- Run the timers of an overdue conversation, and wake a worker if it has work.
-- ARGV: conversation, RQ job...
-- Returns 'ok' when a worker is woken.
local score = redis.call('ZSCORE', due, conversation)
if not score or tonumber(score) > now() then return 'not due' end
ring()
if not has_work() then
  rest()
  return 'idle'
end
return wake(2) and 'ok' or 'queued'
