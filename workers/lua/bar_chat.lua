-- needs: keys
-- Note in the conversation of a whole chat that the bot may not write in any of its threads, or that it may again.
-- args: barred.
if not args.barred then return redis.call('HDEL', conversation_key, 'barred_until') end
local exists = redis.call('EXISTS', conversation_key) == 1
redis.call('HSET', conversation_key, 'barred_until', string.format('%d', now() + BARRED_MS))
if not exists then redis.call('PEXPIRE', conversation_key, BARRED_MS) end
return 1
