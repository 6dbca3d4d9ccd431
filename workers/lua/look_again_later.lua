-- needs: keys, queue
-- Of overdue conversations, look again later at those whose wake-up is still in the queue. The
-- worker that takes the wake-up handles their timers, too.
--
-- args:
--   conversations   the overdue ones
--   queued          those whose job is in the queue, if the queue has a server of its own; else
--                   absent
-- returns: the conversations without a job in the queue.
local is_queued_elsewhere = {}
for _, name in ipairs(args.queued or {}) do is_queued_elsewhere[name] = true end

local function has_job(name)
  if args.queued then return is_queued_elsewhere[name] end
  local job = redis.call('HGET', shard .. ':conversation:' .. name, 'job')
  return job and is_queued(job)
end

local without_job = {}
local later = {}
for _, name in ipairs(args.conversations) do
  if has_job(name) then
    later[#later + 1] = now() + LOOK_AGAIN_MS
    later[#later + 1] = name
  else
    without_job[#without_job + 1] = name
  end
end
if #later > 0 then redis.call('ZADD', due, unpack(later)) end
return without_job
