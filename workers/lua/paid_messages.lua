-- Return how many paid messages this shard sent on one day, as pairs of "channel class" and number.
-- args: days_ago (0 for today, by this server's clock in UTC).
return redis.call('HGETALL', shard .. ':paid:' .. math.floor(now() / DAY_MS) - args.days_ago)
