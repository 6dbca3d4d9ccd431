-- needs: conversation
-- Check whether the bot may not write in any thread of the chat that this conversation stands for.
--
-- returns: 1 if it may not, else 0.
return conversation_number('barred_until') > now() and 1 or 0
