-- needs: actions, changes
-- Make a transition of an action, or store new actions, without a lease. No worker delivers the question, so a new
-- action counts as shown at once.
-- args: change ({transition?, new_actions: [...]}, `TurnChange.to_dict`).
-- Returns JSON: `status` is 'ok', or why the change is impossible ('state' or 'exists'); `action` is the last action
-- that was changed.
local change = args.change
local refused = refusal_of(change)
if refused then return cjson.encode({status = refused}) end

apply_change(change, true)
local last = change.new_actions[#change.new_actions] or change.transition
return cjson.encode({status = 'ok', action = load_action(last.action_id)})
