-- The first reply must wait: let the lane go until then. ARGV: conversation, epoch, token, reply number, delay in ms,
-- '1' if this try may have arrived.
if not holds(ARGV[2], ARGV[3]) then return 'lost' end
local head = redis.call('LINDEX', outbox, 0)
if string.match(head or '', '^%d+') ~= ARGV[4] then return 'gone' end
redis.call('HINCRBY', lane, 'attempts', 1)
redis.call('HDEL', lane, 'sending')
if ARGV[6] == '1' then redis.call('HSET', lane, 'suspect', ARGV[4]) end
-- Nobody holds it, and nobody can take it sooner: a wake-up still in the queue must not cut the wait short.
redis.call('HSET', lane, 'token', 'parked', 'until', now() + ARGV[5])
redis.call('ZADD', due, now() + ARGV[5], conversation)
return 'ok'
