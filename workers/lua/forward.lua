-- Say here what another conversation has to say to this one, once. ARGV: conversation, id of the delivery there, entry,
-- RQ job... Returns the number that it has here, or '' when too much waits here already.
local forwarded = shard .. ':forwarded:' .. ARGV[2]
local first = redis.call('GET', forwarded)
if first then return first end
if redis.call('LLEN', outbox) >= MAX_WAITING then return '' end
local coming = awaited()
local said = say('-', ARGV[3])
redis.call('SET', forwarded, said, 'PX', KEEP_DELIVERY)
keep()
if not coming then wake(4) end
return said
