-- needs: actions
-- Report whether this shard was resumed lately after a loss of data, and which open questions were
-- closed then.
--
-- returns: JSON with `now` and `resumed_at` (in Unix milliseconds), and `closed`, a list of objects
--   with `action` and `address` (JSON). '' if the shard was not resumed lately.
local resumed_at = redis.call('GET', shard .. ':resumed')
if not resumed_at then return '' end

local closed = {}
for _, action_id in ipairs(redis.call('LRANGE', shard .. ':closed_questions', 0, -1)) do
  local action = load_action(action_id)
  local address = redis.call('HGET', action_key(action_id), 'address')
  if action and address then closed[#closed + 1] = {action = action, address = address} end
end
return cjson.encode({now = now(), resumed_at = tonumber(resumed_at), closed = closed})
