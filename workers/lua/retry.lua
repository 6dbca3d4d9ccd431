-- needs: conversation, deliveries, keys, outbox, queue
-- Put a dead reply back at the end of its conversation's outbox, once.
-- args: number (of the reply), doubtful (it may have arrived).
-- ARGV[2]: its entry in the list of dead replies; ARGV[3]: its outbox entry; from ARGV[4]: the hash of the RQ job.
-- Returns its new number, 'arrived' when the platform reported it as delivered, or '' when it is not in the list.
local again = string.match(redis.call('HGET', deliveries, args.number) or '', '^retried %d+ %d+ (%d+)')
if again then return again end
local late = arrived_receipt(args.number) ~= ''
if redis.call('LREM', shard .. ':dead', 1, ARGV[2]) == 0 then return late and 'arrived' or '' end
if late then return 'arrived' end
local coming = is_worker_expected()
local new = append_reply('-', ARGV[3])
if args.doubtful then redis.call('HSET', conversation_key, 'suspect:' .. new, 1) end
redis.call('HDEL', deliveries, args.number)
record_delivery(args.number, 'retried', 0, new)
keep_conversation()
if not coming then wake_worker(4) end
return new
