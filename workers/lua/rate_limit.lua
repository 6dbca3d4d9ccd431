-- needs: channel, conversation
-- Store how fast a channel may send, and book a time slot for the first reply.
-- args: epoch, token, number (of the reply), gap_ms (between two messages of the channel).
-- Returns in how many milliseconds the reply may be sent, or -2 when the lease is lost.
if not holds_lease() then return -2 end
local key = rate_key()
redis.call('HSET', key, 'gap_ms', args.gap_ms)
redis.call('PEXPIRE', key, math.max(KEEP_RATE_MS, redis.call('PTTL', key)))
return book_slot(args.number)
