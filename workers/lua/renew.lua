-- needs: conversation, inbox, keys
-- Renew the lease.
-- ARGV: conversation, epoch, token, milliseconds of the lease.
-- Returns the number of the last turn with which the user of the first turn said stop, or 0.
if not holds_lease(ARGV[2], ARGV[3]) then return 'lost' end
redis.call('HSET', lane, 'until', now() + ARGV[4])
redis.call('ZADD', due, now() + ARGV[4], conversation)
local head = redis.call('LINDEX', inbox, 0)
return head and lane_number(stop_field(user_of(head))) or 0
