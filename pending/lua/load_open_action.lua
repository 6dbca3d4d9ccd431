-- needs: actions
-- Load the action that occupies the scope of a user.
--
-- args:
--   user   the id of the scope
-- returns: the action as JSON, '' if none does.
local action_id = redis.call('GET', open_action_key(args.user))
if not action_id then return '' end
return action_json(action_id)
