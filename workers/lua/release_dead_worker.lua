-- needs: keys
-- End the leases of a worker that is certainly dead, so that other workers need not wait for their
-- end.
--
-- args:
--   token_prefix   the beginning of the tokens of the worker's leases
-- returns: the ids of the conversations that it held in this shard.
local freed = {}
local prefix = args.token_prefix

-- A conversation is due when its lease ends, so the leases that last are found here.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', due, now(), now() + SOON_MS)) do
  local key = shard .. ':conversation:' .. name
  local token, lease_until = unpack(redis.call('HMGET', key, 'token', 'lease_until'))
  local is_leased = tonumber(lease_until or '0') > now()
  if is_leased and token and string.sub(token, 1, #prefix) == prefix then
    redis.call('HSET', key, 'lease_until', now())
    redis.call('ZADD', due, now(), name)
    freed[#freed + 1] = name
  end
end
return freed
