-- needs: conversation, deliveries, keys, outbox, queue
-- Put a dead reply back at the end of its conversation's outbox, once.
--
-- args:
--   number     of the reply
--   doubtful   true if the reply may have arrived
--   ARGV[2]    its entry in the list of dead replies, '' if it is not there
--   ARGV[3]    the record of the reply; from ARGV[4]: the hash of the RQ job
-- returns: the new number of the reply; 'arrived' if the platform reported it as delivered; '' if
--   it is not in the list.
local delivery = load_delivery(args.number)

-- The call is repeated because its answer was lost. The new number stands in place of the receipt.
if delivery and delivery.state == 'retried' then return delivery.receipt end

local arrived = delivery and has_arrived(delivery)
local was_listed = redis.call('LREM', shard .. ':dead', 1, ARGV[2]) == 1
if arrived then return 'arrived' end
if not was_listed then return '' end

local was_expected = is_worker_expected()
local number = append_reply(ARGV[3])
if args.doubtful then redis.call('HSET', conversation_key, 'suspect:' .. number, 1) end
redis.call('HDEL', deliveries, args.number)
record_delivery(args.number, 'retried', 0, number)
keep_conversation()
if not was_expected then wake_worker(4) end
return number
