-- needs: conversation, deliveries, keys, outbox, queue
-- Put a dead reply back at the end of its conversation's outbox, once.
-- ARGV: conversation, number of the reply, entry in the list of dead replies, outbox entry, '1' if it may have
-- arrived, RQ job...
-- Returns its new number, 'arrived' when the platform reported it as delivered, or '' when it is not in the list.
local again = string.match(redis.call('HGET', deliveries, ARGV[2]) or '', '^retried %d+ %d+ (%d+)')
if again then return again end
local late = arrived_receipt(ARGV[2]) ~= ''
if redis.call('LREM', shard .. ':dead', 1, ARGV[3]) == 0 then return late and 'arrived' or '' end
if late then return 'arrived' end
local coming = is_worker_expected()
local new = append_reply('-', ARGV[4])
if ARGV[5] == '1' then redis.call('HSET', lane, 'suspect:' .. new, 1) end
redis.call('HDEL', deliveries, ARGV[2])
record_delivery(ARGV[2], 'retried', 0, new)
keep_conversation()
if not coming then wake_worker(6) end
return new
