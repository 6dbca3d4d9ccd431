-- needs: keys, last_message
-- The holder of the lease begins to show something that is no reply, such as a draft: it follows the question before it.
-- args: epoch, token.
if not holds_lease() then return 'lost' end
follow_question()
return 'ok'
