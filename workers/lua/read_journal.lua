-- needs: conversation, keys
-- Return the journal of the first waiting turn.
-- ARGV: conversation, epoch, token.
if not holds_lease(ARGV[2], ARGV[3]) then return 'lost' end
return redis.call('LRANGE', journal, 0, -1)
