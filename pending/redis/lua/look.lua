-- needs: actions, keys
-- The live action of a scope, and this server's time, by which its window is judged. ARGV: conversation, user.
local pid = redis.call('GET', live_key(ARGV[2]))
return pid and action_row(pid) or {}
