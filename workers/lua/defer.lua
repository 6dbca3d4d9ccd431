-- needs: conversation, keys
-- Leave a conversation to a worker that knows its channel. It is due again in a second, and later the longer no
-- worker takes it.
-- Returns for how many milliseconds no worker has taken it, or -1 while one works on it.
if redis.call('EXISTS', lane) == 0 or lane_number('until') > now() then return -1 end
redis.call('HSETNX', lane, 'unserved', now())
redis.call('HDEL', lane, 'job')
local waited = now() - lane_number('unserved')
redis.call('ZADD', due, now() + math.max(1000, math.min(60000, math.floor(waited / 4))), conversation)
return waited
