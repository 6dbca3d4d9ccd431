-- needs: keys
-- Expire the leases of a worker that is certainly dead.
-- args: token_prefix (of the worker's leases).
-- Returns the conversations that it held.
local freed, time, prefix = {}, now(), args.token_prefix
for _, held in ipairs(redis.call('ZRANGEBYSCORE', due, time, time + SOON_MS)) do
  local key = shard .. ':conversation:' .. held
  local token, lasts = unpack(redis.call('HMGET', key, 'token', 'lease_until'))
  if token and string.sub(token, 1, #prefix) == prefix and tonumber(lasts or '0') > time then
    redis.call('HSET', key, 'lease_until', time)
    redis.call('ZADD', due, time, held)
    freed[#freed + 1] = held
  end
end
return freed
