-- needs: actions
-- Return actions by id.
-- args: action_ids.
local found = {}
for at, action_id in ipairs(args.action_ids) do found[at] = action_row(action_id) end
return found
