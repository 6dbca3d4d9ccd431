-- needs: conversation, due_timers, keys, next_item, queue, timers
-- Release the lease. Timers that became due are handled first.
-- ARGV: conversation, epoch, token, '1' to release even if work is left, '1' if the first turn was begun, RQ job...
if not holds_lease(ARGV[2], ARGV[3]) then return {'lost'} end
run_due_timers()
local busy = has_work()
if busy and ARGV[4] == '0' then return {'more', next_item()} end
redis.call('HSET', lane, 'token', '', 'until', 0)
if ARGV[5] == '0' then redis.call('HSET', lane, 'begun', '') end  -- the turn that is handed over was not begun
keep_conversation()
if busy then wake_worker(6) else wait_for_timer() end
return {'ok'}
