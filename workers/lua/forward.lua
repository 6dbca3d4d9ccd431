-- needs: conversation, keys, outbox, queue
-- Append a reply of another conversation to this one's outbox, once.
--
-- args:
--   delivery   the id of the reply in the other conversation
--   ARGV[2]    the record of the reply; from ARGV[3]: the hash of the RQ job
-- returns: the number of the reply here, '' if too many replies wait here.
local forwarded_key = shard .. ':forwarded:' .. args.delivery
local earlier_number = redis.call('GET', forwarded_key)
if earlier_number then return earlier_number end
if redis.call('LLEN', outbox) >= MAX_FORWARDED_WAITING then return '' end

local was_expected = is_worker_expected()
local number = append_reply(ARGV[2])
redis.call('SET', forwarded_key, number, 'PX', KEEP_DELIVERY_MS)
keep_conversation()
if not was_expected then wake_worker(3) end
return number
