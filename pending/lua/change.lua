-- needs: actions, changes
-- Move or store actions without a lease: a new action counts as shown at once.
-- args: change ({move?, arms: [...]}).
local change = args.change
local refused = refusal_of(change)
if refused then return {refused, {}} end
apply_change(change, true)
local last = change.arms[#change.arms] or change.move
return {'ok', action_row(last.pid)}
