-- needs: conversation, last_message
-- The holder of the lease begins to show something that is no reply, such as a draft. From now on an open question is
-- not the last message of the bot.
-- args: epoch, token.
if not holds_lease() then return 'lost' end
follow_question()
return 'ok'
