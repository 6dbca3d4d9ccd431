-- needs: channel, conversation
-- Store how fast a channel may send, and book a time slot for the first reply of a conversation.
--
-- args:
--   epoch, token   of the worker's lease
--   number         of the reply
--   gap_ms         between two messages of the channel
-- returns: in how many milliseconds the reply may be sent, or 'lost' (the lease).
if not holds_lease() then return 'lost' end
local key = rate_key()
redis.call('HSET', key, 'gap_ms', args.gap_ms)
redis.call('PEXPIRE', key, math.max(KEEP_RATE_MS, redis.call('PTTL', key)))
return book_slot(args.number)
