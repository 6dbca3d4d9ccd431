-- needs: conversation, keys, outbox, queue
-- Append a reply of another conversation to this one's outbox, once.
-- ARGV: conversation, delivery id in the other conversation, outbox entry, RQ job...
-- Returns the number of the reply here, or '' when too many replies wait here.
local forwarded = shard .. ':forwarded:' .. ARGV[2]
local first = redis.call('GET', forwarded)
if first then return first end
if redis.call('LLEN', outbox) >= MAX_FORWARDED_WAITING then return '' end
local coming = is_worker_expected()
local said = append_reply('-', ARGV[3])
redis.call('SET', forwarded, said, 'PX', KEEP_DELIVERY_MS)
keep_conversation()
if not coming then wake_worker(4) end
return said
