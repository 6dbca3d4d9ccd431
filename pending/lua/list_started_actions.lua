-- needs: actions
-- Return the actions that a user started lately, the last one first.
-- args: user.
local found = {}
for _, action_id in ipairs(redis.call('LRANGE', started_actions_key(args.user), 0, -1)) do
  local row = action_row(action_id)
  if row[1] then found[#found + 1] = row end
end
return found
