-- needs: conversation, keys, next_item
-- Take the lease of a conversation if it is free.
-- args: token, lease_ms (how long the lease lasts).
-- Returns JSON with `epoch` (the fencing number) and `next_item`; nil while another worker has the lease.
local time = now()
local held = conversation_number('lease_until') > time
if redis.call('EXISTS', conversation_key) == 0 then return false end
if held and redis.call('HGET', conversation_key, 'token') ~= args.token then return false end
local epoch = held and conversation_number('epoch') or next_number('epoch')
redis.call('HSET', conversation_key, 'token', args.token, 'lease_until', time + args.lease_ms)
redis.call('HDEL', conversation_key, 'job', 'released_by', 'unserved_since')  -- the wake-up has served its purpose
redis.call('ZADD', due, time + args.lease_ms, conversation)
return cjson.encode({epoch = epoch, next_item = next_item()})
