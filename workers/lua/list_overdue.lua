-- needs: keys
-- List the conversations of this shard that are due although no worker came.
--
-- args:
--   most   how many are returned at most
-- returns: their ids, the most overdue first.
return redis.call('ZRANGEBYSCORE', due, '-inf', now(), 'LIMIT', 0, args.most)
