-- Move or arm without a lane: what is armed counts as shown at once. ARGV: conversation, change as JSON.
local change = cjson.decode(ARGV[2])
local refused = obstacle(change)
if refused then return {refused, {}} end
apply(change)
if change.arm then show(change.arm.pid, 0) end
return {'ok', pending((change.arm or change.move).pid)}
