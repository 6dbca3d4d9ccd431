-- needs: conversation, forwarded, inbox, outbox, queue
-- Append a turn from another conversation to the inbox of this one, once.
--
-- args:
--   delivery      the id of the turn in the other conversation
--   user          the id of the scope that the turn belongs to
--   action_id     the action that the turn is about
--   received_at   when the turn counts as received, in Unix milliseconds: when the other
--                 conversation received the message that caused it
--   ARGV[2]       the turn as JSON
--   from ARGV[3]: the hash of the RQ job
-- returns: the number of the turn here.
local earlier = earlier_answer()
if earlier then return earlier end

local was_expected = is_worker_expected()
local seq = next_number('last_turn')
append_to_inbox({
  seq = seq,
  received_at = string.format('%d', math.min(now(), args.received_at)),
  user = args.user,
  tapped_action_id = args.action_id,
  json = ARGV[2],
})
keep_conversation()
if not was_expected then wake_worker(3) end
return remember_answer(tostring(seq))
