-- needs: actions
-- Return the actions that a user started lately, the last one first.
-- args: user.
local found = {}
for _, pid in ipairs(redis.call('LRANGE', recent_key(args.user), 0, -1)) do
  local row = action_row(pid)
  if row[1] then found[#found + 1] = row end
end
return found
