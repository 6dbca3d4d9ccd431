-- needs: conversation, keys
-- Leave a conversation to a worker that knows its channel. It is due again in a second at first,
-- and later the longer no worker takes it.
--
-- returns: for how many milliseconds no worker has taken it, or nil while a worker works on it.
if redis.call('EXISTS', conversation_key) == 0 then return false end
if conversation_number('lease_until') > now() then return false end

redis.call('HSETNX', conversation_key, 'unserved_since', now())
redis.call('HDEL', conversation_key, 'job')
local waited_ms = now() - conversation_number('unserved_since')
local pause_ms = math.max(1000, math.min(60000, math.floor(waited_ms / 4)))
redis.call('ZADD', due, now() + pause_ms, conversation)
return waited_ms
