-- needs: conversation, keys
-- Before a halted server resumes: raise the numbers of a conversation above all that were ever given out, end its
-- lease, and mark waiting replies as possibly sent.
-- args: floor (lowest new number), restored (from a backup: its waiting turns were probably answered since, so they do
-- not run again, and their users are told).
-- Returns how many replies were marked.
if redis.call('EXISTS', conversation_key) == 0 then return 0 end
for _, field in ipairs({'last_turn', 'last_reply', 'epoch'}) do
  local n = redis.call('HGET', conversation_key, field)
  if n and tonumber(n) < args.floor then redis.call('HSET', conversation_key, field, args.floor) end
end
if args.restored then
  local last = string.match(redis.call('LINDEX', inbox, -1) or '', '^%d+')
  if last then redis.call('HSET', conversation_key, 'last_restored_turn', last) end
end
local suspects = 0
for _, reply in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
  if not string.find(reply, '^%d+ %- {"forward"') then  -- the other conversation de-duplicates it
    redis.call('HSET', conversation_key, 'suspect:' .. string.match(reply, '^%d+'), 1)
    suspects = suspects + 1
  end
end
if redis.call('HGET', conversation_key, 'token') ~= 'parked' then
  redis.call('HSET', conversation_key, 'token', '', 'lease_until', 0)
  if has_work() then redis.call('ZADD', due, now(), conversation) end
end
return suspects
