-- needs: keys
-- List conversations that are due although no worker came.
-- args: most (to return).
return redis.call('ZRANGEBYSCORE', due, '-inf', now(), 'LIMIT', 0, args.most)
