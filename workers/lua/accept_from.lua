-- needs: accept_turn, records, sender
-- Store the ids of a turn's sender, and the turn, if its sender is the supposed one.
--
-- The script runs in the shard of a conversation, and the sender's ids decide which conversation
-- that is. So the caller supposes who the sender is, and tries again with the real one.
--
-- args:
--   supposed   the sender with the ids of the message, as `Identity` in Python
-- returns: the outcome, as `accept_turn` does; or 'other', a space and the record of the real
--   sender as JSON, with nothing stored.
local sender, forgotten = find_sender()

local function is_supposed()
  local supposed = args.supposed
  return sender.key == supposed.key
    and sender.number == supposed.number
    and sender.user_id == supposed.user_id
    and table.concat(sender.ids, ' ') == table.concat(supposed.ids, ' ')
end

if not is_supposed() then return 'other ' .. encode_record(sender) end
store_sender(sender, forgotten)
return accept_turn()
