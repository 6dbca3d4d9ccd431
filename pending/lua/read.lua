-- needs: actions
-- Return actions by id.
-- args: pids.
local found = {}
for at, pid in ipairs(args.pids) do found[at] = action_row(pid) end
return found
