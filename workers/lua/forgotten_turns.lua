-- needs: keys
-- Find the turns of a user that this server has acknowledged and does not know any more. Turns
-- whose user was told what became of them are left out.
--
-- args:
--   user    the id of the scope
--   turns   in order, each with `event` (the digest of the event's id) and `at` (in Unix
--           milliseconds)
-- returns: JSON with `events` (those of the forgotten turns, in order) and `language` (of the last
--   answer here, '' if unknown).
local explained_until = tonumber(redis.call('HGET', loss_key(), 'until:' .. args.user) or '0')

local function is_forgotten(turn)
  if turn.at <= explained_until then return false end
  if redis.call('EXISTS', event_key(turn.event)) == 1 then return false end
  return redis.call('HEXISTS', loss_key(), turn.event) == 0
end

local events = {}
for _, turn in ipairs(args.turns) do
  if is_forgotten(turn) then events[#events + 1] = turn.event end
end
return cjson.encode({
  events = events,
  language = redis.call('HGET', conversation_key, 'language') or '',
})
