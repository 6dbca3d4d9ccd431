-- needs: actions
-- List the actions that a user started within the last KEEP_RECENT_MS, the last one first.
-- args: user (the id of the scope).
-- Returns a list of actions as JSON. Actions that are no longer stored are left out.
local found = {}
for _, action_id in ipairs(redis.call('LRANGE', started_actions_key(args.user), 0, -1)) do
  local action = action_json(action_id)
  if action ~= '' then found[#found + 1] = action end
end
return found
