-- Of conversations that are overdue, look again later at those whose wake-up still stands in the queue: whoever comes to it
-- takes care of their timers too. ARGV: -, what job keys begin with, queue key, conversations... Returns the others.
local others, later = {}, {}
for at = 4, #ARGV do
  local job = redis.call('HGET', shard .. ':lane:' .. ARGV[at], 'job')
  if job and stands(job, 2) then
    later[#later + 1], later[#later + 2] = now() + LOOK_AGAIN, ARGV[at]
  else
    others[#others + 1] = ARGV[at]
  end
end
if #later > 0 then redis.call('ZADD', due, unpack(later)) end
return others
