-- needs: keys, queue
-- Of overdue conversations, look again later at those whose wake-up is still in the queue. The worker that takes the
-- wake-up also handles their timers.
-- args: conversations, queued (those whose job is in the queue, when that has a server of its own).
-- Returns the others.
local others, later, queued = {}, {}, {}
for _, name in ipairs(args.queued or {}) do queued[name] = true end

local function has_job(name)
  if args.queued then return queued[name] end
  local job = redis.call('HGET', shard .. ':conversation:' .. name, 'job')
  return job and is_queued(job)
end

for _, name in ipairs(args.conversations) do
  if has_job(name) then
    later[#later + 1], later[#later + 2] = now() + LOOK_AGAIN_MS, name
  else
    others[#others + 1] = name
  end
end
if #later > 0 then redis.call('ZADD', due, unpack(later)) end
return others
