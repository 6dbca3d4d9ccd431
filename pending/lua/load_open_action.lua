-- needs: actions
-- Load the action that occupies the scope of a user.
-- args: user (the id of the scope).
-- Returns the action as JSON, '' when nothing is open.
local action_id = redis.call('GET', open_action_key(args.user))
return action_id and action_json(action_id) or ''
