-- needs: accept_turn, records, sender
-- Store the ids of a turn's sender, and the turn, if its sender is the supposed one: the script runs
-- in the shard of that person's conversation.
-- args: supposed (the sender with the ids of the message, as Identity in Python).
-- Returns what `accept` returns, or {'other', the record of the real sender as JSON}, with nothing stored.
local sender, forgotten = find_sender()

local function is_supposed()
  local supposed = args.supposed
  local same = sender.key == supposed.key and sender.number == supposed.number and sender.user_id == supposed.user_id
  return same and table.concat(sender.ids, ' ') == table.concat(supposed.ids, ' ')
end

if not is_supposed() then return {'other', encode_record(sender)} end
store_sender(sender, forgotten)
return accept_turn()
