-- needs: conversation, keys
-- Load the journal of the first waiting turn.
--
-- args:
--   epoch, token   of the worker's lease
-- returns: the list of its entries, or 'lost' (the lease).
if not holds_lease() then return 'lost' end
return redis.call('LRANGE', journal, 0, -1)
