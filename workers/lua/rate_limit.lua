-- needs: channel, conversation
-- Store how fast a channel may send, and book a time slot for the first reply.
-- ARGV: conversation, epoch, token, number of the reply, milliseconds between two messages of the channel.
-- Returns in how many milliseconds the reply may be sent, or -2 when the lease is lost.
if not holds_lease(ARGV[2], ARGV[3]) then return -2 end
local pace = rate_key()
redis.call('HSET', pace, 'gap', ARGV[5])
redis.call('PEXPIRE', pace, math.max(KEEP_RATE_MS, redis.call('PTTL', pace)))
return book_slot(ARGV[4])
