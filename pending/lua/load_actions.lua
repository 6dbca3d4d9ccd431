-- needs: actions
-- Load actions by their ids.
-- args: action_ids.
-- Returns a list with one entry for each id: the action as JSON, '' for an unknown one.
local found = {}
for at, action_id in ipairs(args.action_ids) do
  found[at] = action_json(action_id)
end
return found
