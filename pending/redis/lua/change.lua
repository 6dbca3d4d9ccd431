-- needs: actions, changes
-- Move or arm without a lane: what is armed counts as shown at once. ARGV: conversation, change as JSON.
local change = cjson.decode(ARGV[2])
local refused = refusal_of(change)
if refused then return {refused, {}} end
apply_change(change, true)
local last = change.arms[#change.arms] or change.move
return {'ok', action_row(last.pid)}
