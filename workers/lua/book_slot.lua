-- needs: channel, conversation
-- Store how fast a channel may send, and book a time slot for the first reply of a conversation.
--
-- args:
--   epoch, token   of the worker's lease
--   number         of the reply
--   gap_ms         between two messages of the channel, 0 if it has no limit
-- returns: in how many milliseconds the reply may be sent, or 'lost' (the lease).
if not holds_lease() then return 'lost' end
store_gap(rate_key(), args.gap_ms)
return book_slot(args.number) or 0
