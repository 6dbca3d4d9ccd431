-- needs: outbox
-- List undelivered replies of this shard.
--
-- args:
--   state   'dead', 'failed', 'ambiguous' or 'held'
-- returns: the replies as JSON, the newest first, at most MAX_UNDELIVERED.
local last = MAX_UNDELIVERED - 1
if args.state ~= 'held' then return redis.call('LRANGE', shard .. ':' .. args.state, 0, last) end

local held = {}
for _, name in ipairs(redis.call('ZREVRANGE', held_conversations, 0, last)) do
  local stored, last_turn =
    unpack(redis.call('HMGET', shard .. ':conversation:' .. name, 'held_reply', 'last_turn'))
  local hold = stored and cjson.decode(stored)

  -- The user may have written since: then the reply is not held any more.
  if hold and hold.last_turn == tonumber(last_turn or '0') then
    held[#held + 1] = cjson.encode({
      id = name .. '#' .. hold.number, at = hold.since, attempts = 0, reason = hold.reason,
    })
  end
end
return held
