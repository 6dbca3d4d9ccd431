-- needs: keys, queue
-- Of overdue conversations, look again later at those whose wake-up is still in the queue. The worker that takes the
-- wake-up also handles their timers.
-- args: conversations.
-- Returns the others.
local others, later = {}, {}
for _, name in ipairs(args.conversations) do
  local job = redis.call('HGET', shard .. ':lane:' .. name, 'job')
  if job and is_queued(job) then
    later[#later + 1], later[#later + 2] = now() + LOOK_AGAIN_MS, name
  else
    others[#others + 1] = name
  end
end
if #later > 0 then redis.call('ZADD', due, unpack(later)) end
return others
