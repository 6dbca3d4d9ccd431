-- needs: keys
-- List conversations that are due although no worker came.
-- ARGV: -, most to return.
return redis.call('ZRANGEBYSCORE', due, '-inf', now(), 'LIMIT', 0, ARGV[2])
