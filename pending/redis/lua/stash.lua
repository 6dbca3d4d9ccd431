-- needs: changes
-- Arm an action that is shown at once, without a lane, if nothing else waits. ARGV: conversation, user, action, record,
-- MAC, milliseconds to answer, kind, digest, further fields... Returns 'exists' or when its window closes.
local arm = {
  user = ARGV[2], pid = ARGV[3], rec = ARGV[4], mac = ARGV[5], ttl = tonumber(ARGV[6]), kind = ARGV[7],
  digest = ARGV[8], live = true, more = {unpack(ARGV, 9)},
}
if is_scope_occupied(arm) then return 'exists' end
return store_action(arm, true)
