-- needs: keys
-- The RQ queue, whose jobs wake workers: a job names the conversation that has work.
--
-- args:
--   job_keys   prefix of the keys of jobs
--   queue      key of the queue
--   queues     key of the set of all queues
--   jobs       key of the number of jobs so far
--   job        id of the new job, without its number; absent where no job is needed (in tests and
--              in programs of one process)

-- Whether this script wakes a worker: false, 'usual' or 'urgent'. It is for the caller, where the
-- queue has a server of its own (QUEUE_IS_ELSEWHERE): the caller queues the job there.
local wake = false

-- Urgent jobs have an id with this prefix, and go to the front of the queue.
local function is_urgent_job(job)
  return string.sub(job, 1, #URGENT_JOB) == URGENT_JOB
end

-- Return the number of a job in the order of the queue's jobs, nil for a job of another program.
local function job_number(job)
  return tonumber(string.match(job, '_(%d+)$') or '')
end

-- Return whether a conversation's job is still in the queue. The queue is not searched: that would
-- take longer the more jobs wait.
local function is_queued(job)
  -- A job that was begun, or is over, has another status.
  if redis.call('HGET', args.job_keys .. job, 'status') ~= 'queued' then return false end

  -- A worker may have died between taking the job and changing its status. Then the order decides:
  -- urgent jobs enter at the front, all others at the end, and all leave at the front.
  local first_job = redis.call('LINDEX', args.queue, 0)
  if not first_job then return false end
  local first = job_number(first_job)
  local own = job_number(job) or 0

  -- The first job tells nothing, so this one counts as queued, and the caller asks again later.
  if not first then return true end
  if is_urgent_job(job) then return is_urgent_job(first_job) and first >= own end
  return is_urgent_job(first_job) or first <= own
end

-- Put an RQ job on the queue, an urgent one at the front. Return its id, which ends with its
-- number: that gives the order of jobs. ARGV holds the job's hash, as RQ would write it, from `at`
-- on.
local function add_job(at, is_urgent)
  local id = args.job .. '_' .. redis.call('INCR', args.jobs)
  local push = 'RPUSH'
  if is_urgent then
    id = URGENT_JOB .. id
    push = 'LPUSH'
  end
  redis.call('HSET', args.job_keys .. id, unpack(ARGV, at))
  redis.call('SADD', args.queues, args.queue)
  redis.call(push, args.queue, id)
  return id
end

-- Wake a worker for this conversation. Return false if a job for it is in the queue already. `at`
-- and `is_urgent`: as for `add_job`.
local function wake_worker(at, is_urgent)
  redis.call('ZADD', due, now() + WAKE_GRACE_MS, conversation)

  if QUEUE_IS_ELSEWHERE then wake = is_urgent and 'urgent' or 'usual' end
  if not args.job then return true end

  local job = redis.call('HGET', conversation_key, 'job')
  local is_job_enough = job and (is_urgent_job(job) or not is_urgent)
  if is_job_enough and is_queued(job) then return false end
  redis.call('HSET', conversation_key, 'job', add_job(at, is_urgent))
  return true
end
