-- Let the lane go; timers that were due meanwhile ring first. ARGV: conversation, epoch, token, '1' to hand over
-- even if there is work left, '1' if the turn at the head was begun, RQ job...
if not holds(ARGV[2], ARGV[3]) then return {'lost'} end
ring()
local busy = has_work()
if busy and ARGV[4] == '0' then return {'more', view()} end
redis.call('HSET', lane, 'token', '', 'until', 0)
if ARGV[5] == '0' then redis.call('HSET', lane, 'begun', '') end  -- nobody is at work on a turn that is handed over
keep()
if busy then wake(6) else rest() end
return {'ok'}
