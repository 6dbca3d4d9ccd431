-- needs: conversation, keys, next_item
-- Take the lease of a conversation if it is free.
-- ARGV: conversation, token, milliseconds of the lease.
-- Returns {epoch, view} or nil.
local time = now()
local held = lane_number('until') > time
if redis.call('EXISTS', lane) == 0 then return false end
if held and redis.call('HGET', lane, 'token') ~= ARGV[2] then return false end
local epoch = held and lane_number('epoch') or next_number('epoch')
redis.call('HSET', lane, 'token', ARGV[2], 'until', time + ARGV[3])
redis.call('HDEL', lane, 'job', 'ended', 'unserved')  -- the wake-up has served its purpose
redis.call('ZADD', due, time + ARGV[3], conversation)
return {tostring(epoch), next_item()}
