-- needs: actions
-- Load actions by their ids.
--
-- args:
--   action_ids   a list
-- returns: a list with one entry for each id: the action as JSON, '' for an unknown one.
local actions = {}
for at, action_id in ipairs(args.action_ids) do
  actions[at] = action_json(action_id)
end
return actions
