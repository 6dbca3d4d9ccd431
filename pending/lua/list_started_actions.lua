-- needs: actions
-- List the actions that a user started within the last KEEP_RECENT_MS.
--
-- args:
--   user   the id of the scope
-- returns: a list of actions as JSON, the last one first. Actions that are no longer stored are
--   left out.
local actions = {}
for _, action_id in ipairs(redis.call('LRANGE', started_actions_key(args.user), 0, -1)) do
  local action = action_json(action_id)
  if action ~= '' then actions[#actions + 1] = action end
end
return actions
