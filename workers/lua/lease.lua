-- needs: conversation, keys, next_item
-- Take the lease of a conversation if it is free.
-- args: token, lease_ms (how long the lease lasts).
-- Returns {epoch, next item} or nil.
local time = now()
local held = lane_number('until') > time
if redis.call('EXISTS', lane) == 0 then return false end
if held and redis.call('HGET', lane, 'token') ~= args.token then return false end
local epoch = held and lane_number('epoch') or next_number('epoch')
redis.call('HSET', lane, 'token', args.token, 'until', time + args.lease_ms)
redis.call('HDEL', lane, 'job', 'ended', 'unserved')  -- the wake-up has served its purpose
redis.call('ZADD', due, time + args.lease_ms, conversation)
return {tostring(epoch), next_item()}
