-- needs: actions, changes
-- Move or store actions without a lease: a new action counts as shown at once.
-- args: change ({transition?, new_actions: [...]}).
local change = args.change
local refused = refusal_of(change)
if refused then return {refused, {}} end
apply_change(change, true)
local last = change.new_actions[#change.new_actions] or change.transition
return {'ok', action_row(last.action_id)}
