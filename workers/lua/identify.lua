-- needs: records, sender
-- Find the sender of a message by the ids that the message names.
--
-- args:
--   store     true if these ids are stored as the sender's
--   briefly   true if only for as long as a person who may not talk is remembered
-- returns: the record of the sender as JSON, with the ids of the message.
local sender, forgotten = find_sender()
if args.store then store_sender(sender, forgotten, args.briefly) end
return encode_record(sender)
