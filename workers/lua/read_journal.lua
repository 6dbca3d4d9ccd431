-- needs: conversation, keys
-- Return the journal of the first waiting turn.
-- args: epoch, token.
if not holds_lease() then return 'lost' end
return redis.call('LRANGE', journal, 0, -1)
