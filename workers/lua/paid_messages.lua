-- Count the paid messages that this shard sent on one day.
--
-- args:
--   days_ago   0 for today, by this server's clock in UTC
-- returns: a list of "channel price_class" and the number of its messages, in turn.
local day = math.floor(now() / DAY_MS) - args.days_ago
return redis.call('HGETALL', shard .. ':paid:' .. day)
