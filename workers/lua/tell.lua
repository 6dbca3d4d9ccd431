-- Tell somebody whose turn was refused, once a minute. ARGV: conversation, what to say, RQ job...
local told = number('told_full')
if now() - told < BUSY_NOTICE then return 'told' end
redis.call('HSET', lane, 'told_full', now())
local coming = awaited()
say('-', ARGV[2])
keep()
if not coming then wake(3) end
return 'ok'
