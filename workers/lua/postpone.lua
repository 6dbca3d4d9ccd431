-- The first reply must wait: let the lane go until then. ARGV: conversation, epoch, token, reply number, delay in ms.
if not holds(ARGV[2], ARGV[3]) then return 'lost' end
local head = redis.call('LINDEX', outbox, 0)
if string.match(head or '', '^%d+') ~= ARGV[4] then return 'gone' end
redis.call('HINCRBY', lane, 'attempts', 1)
redis.call('HSET', lane, 'token', '', 'until', 0)
redis.call('ZADD', due, now() + ARGV[5], conversation)
return 'ok'
