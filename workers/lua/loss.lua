-- needs: actions
-- Return when the shard was resumed after a loss of data, and the open questions that were closed then.
-- Returns {now, time of the resume, [[action row, address as JSON]]}, or nothing if it was not resumed lately.
local at = redis.call('GET', shard .. ':resumed')
if not at then return {} end
local closed = {}
for _, action_id in ipairs(redis.call('LRANGE', shard .. ':closed', 0, -1)) do
  local row, to = action_row(action_id), redis.call('HGET', action_key(action_id), 'address')
  if row[1] and to then closed[#closed + 1] = {row, to} end
end
return {tostring(now()), at, closed}
