-- needs: queue
-- On a queue server of its own: put the job of a conversation on the queue, unless one is there.
-- args: job_keys, queue, queues, jobs and job (as in `queue`), urgent.
-- From ARGV[2]: the hash of the RQ job. Returns 1 when the job was added, else 0.
local key = shard .. ':job:' .. conversation
local queued = redis.call('GET', key)
if queued and (is_urgent_job(queued) or not args.urgent) and is_queued(queued) then return 0 end
redis.call('SET', key, add_job(2, args.urgent), 'PX', KEEP_JOB_MS)
return 1
