-- needs: conversation, due_timers, keys, next_item, queue, timers
-- Release the lease, unless work is left. Timers that became due are handled first.
--
-- args:
--   epoch, token   of the worker's lease
--   hand_over      true if the lease is released even if work is left, for another worker
--   begun          true if the first turn was begun, so that this counts as an attempt
--   ARGV[2]        and following: the hash of the RQ job
-- returns: JSON with `status`: 'ok' (released), 'lost' (the lease) or 'has_work'; then the lease
--   stays, and `next_item` says what is next.
if not holds_lease() then return cjson.encode({status = 'lost'}) end

run_due_timers()
local has_more = has_work()
if has_more and not args.hand_over then
  return cjson.encode({status = 'has_work', next_item = next_item()})
end

redis.call('HSET', conversation_key, 'token', '', 'lease_until', 0)
if not args.begun then redis.call('HSET', conversation_key, 'turn_attempts', '') end
keep_conversation()
if has_more then
  wake_worker(2)
else
  wait_for_timer()
end
return cjson.encode({status = 'ok'})
