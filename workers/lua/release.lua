-- Release the lease. Timers that became due are handled first.
-- ARGV: conversation, epoch, token, '1' to release even if work is left, '1' if the first turn was begun, RQ job...
if not holds(ARGV[2], ARGV[3]) then return {'lost'} end
ring()
local busy = has_work()
if busy and ARGV[4] == '0' then return {'more', view()} end
redis.call('HSET', lane, 'token', '', 'until', 0)
if ARGV[5] == '0' then redis.call('HSET', lane, 'begun', '') end  -- the turn that is handed over was not begun
keep()
if busy then wake(6) else rest() end
return {'ok'}
