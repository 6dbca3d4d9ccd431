-- Keep the lane. ARGV: conversation, epoch, token, lease in ms. Returns the number of the last turn that said stop.
if not holds(ARGV[2], ARGV[3]) then return 'lost' end
redis.call('HSET', lane, 'until', now() + ARGV[4])
redis.call('ZADD', due, now() + ARGV[4], conversation)
return number('stop')
