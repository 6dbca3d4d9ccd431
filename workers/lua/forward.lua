-- needs: conversation, keys, outbox, queue
-- Append a reply of another conversation to this one's outbox, once.
-- args: delivery (id of the reply in the other conversation).
-- ARGV[2]: the outbox entry; from ARGV[3]: the hash of the RQ job.
-- Returns the number of the reply here, or '' when too many replies wait here.
local forwarded = shard .. ':forwarded:' .. args.delivery
local first = redis.call('GET', forwarded)
if first then return first end
if redis.call('LLEN', outbox) >= MAX_FORWARDED_WAITING then return '' end
local coming = is_worker_expected()
local number = append_reply('-', ARGV[2])
redis.call('SET', forwarded, number, 'PX', KEEP_DELIVERY_MS)
keep_conversation()
if not coming then wake_worker(3) end
return number
