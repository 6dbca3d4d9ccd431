-- needs: outbox
-- List undelivered replies of this shard, newest first.
-- ARGV: -, 'dead', 'failed', 'ambiguous' or 'held', most to return.
if ARGV[2] ~= 'held' then return redis.call('LRANGE', shard .. ':' .. ARGV[2], 0, ARGV[3] - 1) end
local found = {}
for _, where in ipairs(redis.call('ZREVRANGE', shard .. ':held', 0, ARGV[3] - 1)) do
  local mark, received = unpack(redis.call('HMGET', shard .. ':lane:' .. where, 'held', 'received'))
  local said, by_then, since, why = string.match(mark or '', HELD)
  if said and by_then == (received or '0') then
    found[#found + 1] = cjson.encode({id = where .. '#' .. said, at = tonumber(since), tries = 0, reason = why})
  end
end
return found
