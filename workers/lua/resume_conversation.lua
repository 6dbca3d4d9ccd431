-- needs: conversation, inbox, keys, outbox
-- Before a halted server resumes: raise the numbers of a conversation above all that were ever
-- given out, end its lease, and mark waiting replies as possibly sent.
--
-- args:
--   floor      the lowest new number
--   restored   true if the data is from a backup. Its waiting turns were probably answered since,
--              so they do not run again, and their users are told.
-- returns: how many replies were marked.
if redis.call('EXISTS', conversation_key) == 0 then return 0 end

for _, field in ipairs({'last_turn', 'last_reply', 'epoch'}) do
  local number = redis.call('HGET', conversation_key, field)
  if number and tonumber(number) < args.floor then
    redis.call('HSET', conversation_key, field, args.floor)
  end
end

if args.restored then
  local last_entry = redis.call('LINDEX', inbox, -1)
  if last_entry then
    redis.call('HSET', conversation_key, 'last_restored_turn', parse_turn(last_entry).seq)
  end
end

local suspects = 0
for _, entry in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
  -- The other conversation recognizes a reply that was forwarded before.
  if not is_for_another_conversation(entry) then
    redis.call('HSET', conversation_key, 'suspect:' .. parse_reply(entry).number, 1)
    suspects = suspects + 1
  end
end

-- A parked conversation has no worker, and waits for its reply as before.
if redis.call('HGET', conversation_key, 'token') ~= 'parked' then
  redis.call('HSET', conversation_key, 'token', '', 'lease_until', 0)
  if has_work() then redis.call('ZADD', due, now(), conversation) end
end
return suspects
