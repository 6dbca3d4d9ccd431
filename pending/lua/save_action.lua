-- needs: changes
-- Store an action that is shown at once, without a lease, if no other action occupies its scope.
--
-- args:
--   action   `NewAction.to_dict` in Python
-- returns: when its window closes (Unix milliseconds), or 'exists' (another action occupies the
--   scope).
if is_scope_occupied(args.action) then return 'exists' end
return store_action(args.action, true)
