-- needs: keys, queue
-- Of overdue conversations, look again later at those whose wake-up is still in the queue. The worker that takes the
-- wake-up also handles their timers.
-- ARGV: -, prefix of job keys, queue key, conversations...
-- Returns the others.
local others, later = {}, {}
for at = 4, #ARGV do
  local job = redis.call('HGET', shard .. ':lane:' .. ARGV[at], 'job')
  if job and is_queued(job, 2) then
    later[#later + 1], later[#later + 2] = now() + LOOK_AGAIN_MS, ARGV[at]
  else
    others[#others + 1] = ARGV[at]
  end
end
if #later > 0 then redis.call('ZADD', due, unpack(later)) end
return others
