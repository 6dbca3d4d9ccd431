-- needs: conversation, due_timers, keys, queue, timers
-- Run the timers of an overdue conversation, and wake a worker if it has work.
-- From ARGV[2]: the hash of the RQ job.
-- Returns 'ok' when a worker is woken.
local score = redis.call('ZSCORE', due, conversation)
if not score or tonumber(score) > now() then return 'not due' end
run_due_timers()
if not has_work() then
  wait_for_timer()
  return 'idle'
end
return wake_worker(2) and 'ok' or 'queued'
