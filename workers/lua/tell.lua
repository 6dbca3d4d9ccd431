-- Tell somebody whose turn was refused, once a minute, while not too many wait to be told. ARGV: conversation, what to
-- say, conversations of this shard that may have work, RQ job... Returns whether it will be said.
if now() - number('told_full') < BUSY_NOTICE then return '' end
local coming = awaited()
if not coming and crowd(tonumber(ARGV[3]), 1) then return '' end
redis.call('HSET', lane, 'told_full', now(), 'heard', now())
redis.call('HDEL', lane, 'closed')
unhold()
say('-', ARGV[2])
keep()
if not coming then wake(4) end
return 'told'
