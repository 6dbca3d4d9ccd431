-- Count the paid messages that this shard sent on one day.
--
-- args:
--   days_ago   0 for today, by this server's clock in UTC
-- returns: JSON: the numbers of messages by "channel price_class".
local day = math.floor(now() / DAY_MS) - args.days_ago
local fields = redis.call('HGETALL', shard .. ':paid:' .. day)
local counts = {}
for at = 1, #fields, 2 do
  counts[fields[at]] = tonumber(fields[at + 1])
end
return cjson.encode(counts)
