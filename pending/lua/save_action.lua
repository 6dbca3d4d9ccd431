-- needs: changes
-- Store an action that is shown at once, without a lease, if nothing else waits.
-- args: action.
-- Returns 'exists' or when its window closes.
if is_scope_occupied(args.action) then return 'exists' end
return store_action(args.action, true)
