-- The first reply must wait: let the lane go until then. ARGV: conversation, epoch, token, reply number, delay in ms, why:
-- 'tried', 'suspect' (this try may have arrived), 'limited' (the platform asks its whole channel to wait), 'down' (it
-- does not know this channel any more: nobody is to try for so long, and that counts for nobody), 'paced' (it was not
-- tried) or 'held' (until somebody writes; where a turn waits already, it counts as tried), for what reason.
if not holds(ARGV[2], ARGV[3]) then return 'lost' end
local head = redis.call('LINDEX', outbox, 0)
if string.match(head or '', '^%d+') ~= ARGV[4] then return 'gone' end
if ARGV[6] == 'held' and redis.call('LLEN', inbox) == 0 then
  hold(ARGV[4], ARGV[7])
  return 'ok'
end
local later = now() + ARGV[5]
redis.call('HDEL', lane, 'sending')
if ARGV[6] ~= 'paced' then redis.call('HDEL', lane, 'slot') end
if ARGV[6] ~= 'paced' and ARGV[6] ~= 'down' then redis.call('HINCRBY', lane, 'attempts', 1) end
if ARGV[6] == 'suspect' then redis.call('HSET', lane, 'suspect:' .. ARGV[4], 1) end
if ARGV[6] == 'limited' or ARGV[6] == 'down' then
  -- It was first in line: its next slot is the first after the wait.
  redis.call('HSET', lane, 'slot', string.format('%s:%d', ARGV[4], silence(later)))
end
if later - now() >= SOON then keep_waiting() end
-- Nobody holds it, and nobody can take it sooner: a wake-up still in the queue must not cut the wait short.
redis.call('HSET', lane, 'token', 'parked', 'until', later)
redis.call('ZADD', due, later, conversation)
return 'ok'
