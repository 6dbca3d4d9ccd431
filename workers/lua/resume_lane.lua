-- Before a halted server goes on: this conversation gives out no number again, nobody holds it any more, and what waits to be
-- sent may have arrived. ARGV: conversation, floor. Returns how many replies those are.
if redis.call('EXISTS', lane) == 0 then return 0 end
for _, field in ipairs({'received', 'said', 'epoch'}) do
  local n = redis.call('HGET', lane, field)
  if n and tonumber(n) < tonumber(ARGV[2]) then redis.call('HSET', lane, field, ARGV[2]) end
end
local suspects = 0
for _, reply in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
  if not string.find(reply, '^%d+ %- {"forward"') then  -- another conversation says it, and once
    redis.call('HSET', lane, 'suspect:' .. string.match(reply, '^%d+'), 1)
    suspects = suspects + 1
  end
end
if redis.call('HGET', lane, 'token') ~= 'parked' then
  redis.call('HSET', lane, 'token', '', 'until', 0)
  if has_work() then redis.call('ZADD', due, now(), conversation) end
end
return suspects
