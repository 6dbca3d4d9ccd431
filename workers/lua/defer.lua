-- needs: conversation, keys
-- Leave a conversation to a worker that knows its channel. It is due again in a second, and later the longer no
-- worker takes it.
-- Returns for how many milliseconds no worker has taken it, or -1 while one works on it.
if redis.call('EXISTS', conversation_key) == 0 or conversation_number('lease_until') > now() then return -1 end
redis.call('HSETNX', conversation_key, 'unserved_since', now())
redis.call('HDEL', conversation_key, 'job')
local waited = now() - conversation_number('unserved_since')
redis.call('ZADD', due, now() + math.max(1000, math.min(60000, math.floor(waited / 4))), conversation)
return waited
