-- Deliveries that were put aside, newest first. ARGV: -, 'dead', 'failed' or 'ambiguous', how many at most.
local lists = {dead = shard .. ':dead', failed = shard .. ':failed', ambiguous = shard .. ':ambiguous'}
return redis.call('LRANGE', lists[ARGV[2]], 0, ARGV[3] - 1)
