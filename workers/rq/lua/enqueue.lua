-- needs: queue
-- Put the job of a conversation on the queue, unless one is there, where the queue has a server of
-- its own.
--
-- args:
--   urgent    true if the job goes to the front of the queue
--   ARGV[2]   and following: the hash of the RQ job
-- returns: 1 if the job was added, else 0.
local job_key = shard .. ':job:' .. conversation
local job = redis.call('GET', job_key)
local is_job_enough = job and (is_urgent_job(job) or not args.urgent)
if is_job_enough and is_queued(job) then return 0 end

redis.call('SET', job_key, add_job(2, args.urgent), 'PX', KEEP_JOB_MS)
return 1
