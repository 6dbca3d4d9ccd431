-- needs: keys
-- Expire the leases of a worker that is certainly dead.
-- ARGV: -, prefix of the worker's lease tokens.
-- Returns the conversations that it held.
local freed, time = {}, now()
for _, held in ipairs(redis.call('ZRANGEBYSCORE', due, time, time + SOON_MS)) do
  local key = shard .. ':lane:' .. held
  local token, lasts = unpack(redis.call('HMGET', key, 'token', 'until'))
  if token and string.sub(token, 1, #ARGV[2]) == ARGV[2] and tonumber(lasts or '0') > time then
    redis.call('HSET', key, 'until', time)
    redis.call('ZADD', due, time, held)
    freed[#freed + 1] = held
  end
end
return freed
