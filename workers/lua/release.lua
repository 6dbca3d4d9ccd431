-- needs: conversation, due_timers, keys, next_item, queue, timers
-- Release the lease. Timers that became due are handled first.
-- args: epoch, token, hand_over (release even if work is left), begun (the first turn was begun).
-- From ARGV[2]: the hash of the RQ job.
if not holds_lease() then return cjson.encode({status = 'lost'}) end
run_due_timers()
local busy = has_work()
if busy and not args.hand_over then return cjson.encode({status = 'has_work', next_item = next_item()}) end
redis.call('HSET', conversation_key, 'token', '', 'lease_until', 0)
if not args.begun then redis.call('HSET', conversation_key, 'turn_attempts', '') end  -- the turn that is handed over was not begun
keep_conversation()
if busy then wake_worker(2) else wait_for_timer() end
return cjson.encode({status = 'ok'})
