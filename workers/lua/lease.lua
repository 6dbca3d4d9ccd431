-- needs: conversation, keys, next_item
-- Take the lease of a conversation if it is free.
--
-- args:
--   token      the name of the lease, which its worker chose
--   lease_ms   how long the lease lasts
-- returns: JSON with `epoch` (the fencing number) and `next_item` (what is to do next); nil while
--   another worker has the lease, and for an unknown conversation.
if redis.call('EXISTS', conversation_key) == 0 then return false end
local is_leased = conversation_number('lease_until') > now()
if is_leased and redis.call('HGET', conversation_key, 'token') ~= args.token then return false end

-- A repeated call, whose answer was lost, gets the same number.
local epoch
if is_leased then
  epoch = conversation_number('epoch')
else
  epoch = next_number('epoch')
end

local lease_until = now() + args.lease_ms
redis.call('HSET', conversation_key, 'token', args.token, 'lease_until', lease_until)
redis.call('ZADD', due, lease_until, conversation)

-- The wake-up has served its purpose.
redis.call('HDEL', conversation_key, 'job', 'released_by', 'unserved_since')
return cjson.encode({epoch = epoch, next_item = next_item()})
