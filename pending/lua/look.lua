-- The live action of a scope. ARGV: conversation, user.
local pid = redis.call('GET', live(ARGV[2]))
return pending(pid)
