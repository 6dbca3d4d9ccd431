-- needs: conversation
-- Return 1 if the bot may not write in any thread of the chat that this conversation stands for, else 0.
return conversation_number('barred_until') > now() and 1 or 0
