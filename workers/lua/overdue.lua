-- Conversations whose time has come although nobody came. ARGV: -, most to return.
return redis.call('ZRANGEBYSCORE', due, '-inf', now(), 'LIMIT', 0, ARGV[2])
