-- Send a notice to a user whose turn was refused: once a minute, and while not too many notices wait.
-- ARGV: conversation, outbox entry, conversations of this shard that may have work, RQ job...
-- Returns 'told' when the notice was stored, else ''.
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
