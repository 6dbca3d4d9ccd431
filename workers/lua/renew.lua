-- Keep the lane. ARGV: conversation, epoch, token, lease in ms. Returns the number of the last turn with which the user of
-- the one at the head said stop, 0 for none.
if not holds(ARGV[2], ARGV[3]) then return 'lost' end
redis.call('HSET', lane, 'until', now() + ARGV[4])
redis.call('ZADD', due, now() + ARGV[4], conversation)
local head = redis.call('LINDEX', inbox, 0)
return head and number(stop_of(user_of(head))) or 0
