-- needs: conversation, inbox, keys
-- Renew the lease.
-- args: epoch, token, lease_ms (how long the lease lasts).
-- Returns the number of the last turn with which the user of the first turn said stop, or 0.
if not holds_lease() then return 'lost' end
redis.call('HSET', conversation_key, 'lease_until', now() + args.lease_ms)
redis.call('ZADD', due, now() + args.lease_ms, conversation)
local head = redis.call('LINDEX', inbox, 0)
return head and conversation_number(stop_field(user_of(head))) or 0
