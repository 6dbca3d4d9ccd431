-- needs: records, sender
-- Return the sender of a message.
-- args: store (note the ids of the message as the sender's), briefly (only for as long as a person
-- who may not talk is known).
-- Returns the record of the sender as JSON, with the ids of the message.
local sender, forgotten = find_sender()
if args.store then store_sender(sender, forgotten, args.briefly) end
return encode_record(sender)
