-- needs: keys
-- The RQ queue that wakes workers.
-- args: job_keys (prefix of job keys), queue (its key), queues (key of the set of queues), jobs (key of the number of
-- jobs so far), job (id of the new job).

local function is_urgent_job(job)
  return string.sub(job, 1, #URGENT_JOB) == URGENT_JOB
end

-- Return the number of a job in the order of the queue's jobs; nil for a job of another program.
local function job_number(job)
  return tonumber(string.match(job, '_(%d+)$') or '')
end

-- Return whether a conversation's job is still in the queue. The queue is not searched: that would take longer the more
-- jobs wait. A job that was begun, or is over, has another status. If its worker died before that, the order decides:
-- urgent jobs enter at the front, all others at the end, and all leave at the front. When the first job tells nothing,
-- this one counts as queued, and the caller asks again later.
local function is_queued(job)
  if redis.call('HGET', args.job_keys .. job, 'status') ~= 'queued' then return false end
  local head = redis.call('LINDEX', args.queue, 0)
  if not head then return false end
  local first, own = job_number(head), job_number(job) or 0
  if not first then return true end
  if is_urgent_job(job) then return is_urgent_job(head) and first >= own end
  return is_urgent_job(head) or first <= own
end

-- Put an RQ job on the queue, an urgent one at the front. Return its id, which ends with its number: that gives the
-- order of jobs. From ARGV[at]: the job's hash as RQ wrote it.
local function add_job(at, urgent)
  local id = (urgent and URGENT_JOB or '') .. args.job .. '_' .. redis.call('INCR', args.jobs)
  redis.call('HSET', args.job_keys .. id, unpack(ARGV, at))
  redis.call('SADD', args.queues, args.queue)
  redis.call(urgent and 'LPUSH' or 'RPUSH', args.queue, id)
  return id
end

-- Queue the job that processes this conversation. Return false if one is in the queue already. Without a job (tests,
-- one process) the conversation only becomes due. Where the queue has a server of its own, the caller of the script
-- queues the job.
local function wake_worker(at, urgent)
  redis.call('ZADD', due, now() + WAKE_GRACE_MS, conversation)
  if queue_is_elsewhere then wake = urgent and 2 or 1 end
  if not args.job then return true end
  local queued = redis.call('HGET', conversation_key, 'job')
  if queued and (is_urgent_job(queued) or not urgent) and is_queued(queued) then return false end
  redis.call('HSET', conversation_key, 'job', add_job(at, urgent))
  return true
end
