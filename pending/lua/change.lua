-- needs: actions, changes
-- Make a transition of an action, or store new actions, without a lease.
--
-- Without a lease no worker delivers a question, so a new action counts as shown at once.
--
-- args:
--   change   `TurnChange.to_dict` in Python, with a transition, new actions, a request change or a
--            revocation
-- returns: JSON with `status` ('ok', or why the change is impossible: 'state' or 'exists') and, if
--   that is 'ok', `action` (the last action that was changed).
local change = args.change
local refusal = refusal_of(change)
if refusal then return cjson.encode({status = refusal}) end

apply_change(change, true)
local last = change.new_actions[#change.new_actions] or change.transition or change.request_change
if not last then return cjson.encode({status = 'ok'}) end
return cjson.encode({status = 'ok', action = load_action(last.action_id)})
