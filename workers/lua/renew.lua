-- needs: conversation, inbox, keys, stops
-- Renew the lease.
--
-- args:
--   epoch, token   of the worker's lease
--   lease_ms       how long the lease lasts from now on
-- returns: the number of the last turn with which the user of the first turn said stop, 0 for none;
--   or 'lost' (the lease).
if not holds_lease() then return 'lost' end
local lease_until = now() + args.lease_ms
redis.call('HSET', conversation_key, 'lease_until', lease_until)
redis.call('ZADD', due, lease_until, conversation)

local first = first_turn()
if not first then return 0 end
return conversation_number(stop_field(first.user))
