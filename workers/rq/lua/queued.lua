-- needs: queue
-- Find the conversations whose job is still in the queue, where the queue has a server of its own.
--
-- args:
--   conversations   the ids to look for, all of this shard
-- returns: those whose job is in the queue.
local with_job = {}
for _, name in ipairs(args.conversations) do
  local job = redis.call('GET', shard .. ':job:' .. name)
  if job and is_queued(job) then with_job[#with_job + 1] = name end
end
return with_job
