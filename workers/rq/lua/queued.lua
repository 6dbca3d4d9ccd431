-- needs: queue
-- On a queue server of its own: return those conversations whose job is still in the queue.
-- args: job_keys and queue (as in `queue`), conversations.
local found = {}
for _, name in ipairs(args.conversations) do
  local job = redis.call('GET', shard .. ':job:' .. name)
  if job and is_queued(job) then found[#found + 1] = name end
end
return found
