-- needs: actions
-- Return the open action of a scope.
-- args: user.
local pid = redis.call('GET', live_key(args.user))
return pid and action_row(pid) or {}
