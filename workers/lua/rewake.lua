-- needs: conversation, due_timers, keys, queue, timers
-- Run the timers of an overdue conversation, and wake a worker if it has work.
--
-- args:
--   ARGV[2]   and following: the hash of the RQ job
-- returns: 'ok' if a worker is woken; 'not due', 'idle' (no work is left) or 'queued' (its job is
--   in the queue already) if none is.
local due_at = redis.call('ZSCORE', due, conversation)
if not due_at or tonumber(due_at) > now() then return 'not due' end

run_due_timers()
if not has_work() then
  wait_for_timer()
  return 'idle'
end
return wake_worker(2) and 'ok' or 'queued'
