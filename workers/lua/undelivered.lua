-- needs: outbox
-- List undelivered replies of this shard, newest first.
-- args: state ('dead', 'failed', 'ambiguous' or 'held').
if args.state ~= 'held' then return redis.call('LRANGE', shard .. ':' .. args.state, 0, MAX_UNDELIVERED - 1) end
local found = {}
for _, where in ipairs(redis.call('ZREVRANGE', shard .. ':held', 0, MAX_UNDELIVERED - 1)) do
  local mark, received = unpack(redis.call('HMGET', shard .. ':conversation:' .. where, 'held_reply', 'last_turn'))
  local said, by_then, since, why = string.match(mark or '', HELD)
  if said and by_then == (received or '0') then
    found[#found + 1] = cjson.encode({id = where .. '#' .. said, at = tonumber(since), attempts = 0, reason = why})
  end
end
return found
