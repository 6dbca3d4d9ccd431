-- needs: keys
-- Note in the conversation of a whole chat that the bot may not write in any of its threads, or that it may again.
-- args: barred.
if not args.barred then return redis.call('HDEL', lane, 'barred') end
local exists = redis.call('EXISTS', lane) == 1
redis.call('HSET', lane, 'barred', string.format('%d', now() + BARRED_MS))
if not exists then redis.call('PEXPIRE', lane, BARRED_MS) end
return 1
