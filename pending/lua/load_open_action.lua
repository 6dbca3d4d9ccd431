-- needs: actions
-- Return the open action of a scope.
-- args: user.
local action_id = redis.call('GET', open_action_key(args.user))
return action_id and action_row(action_id) or {}
