-- Let the lane go; timers that were due meanwhile ring first. ARGV: conversation, epoch, token, '1' to hand over even if there is work left, RQ job...
if not holds(ARGV[2], ARGV[3]) then return {'lost'} end
ring()
local busy = has_work()
if busy and ARGV[4] == '0' then return {'more', view()} end
redis.call('HSET', lane, 'token', '', 'until', 0, 'begun', '')  -- nobody is at work on a turn that is handed over
keep()
if busy then wake(5) else rest() end
return {'ok'}
