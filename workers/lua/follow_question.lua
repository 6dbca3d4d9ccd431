-- needs: conversation, last_message
-- Record that the holder of the lease begins to show something that is no reply, such as a draft.
-- From now on an open question is not the last message of the bot.
--
-- args:
--   epoch, token   of the worker's lease
-- returns: 'ok', or 'lost' (the lease).
if not holds_lease() then return 'lost' end
follow_question()
return 'ok'
