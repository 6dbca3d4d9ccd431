-- needs: actions
-- Report when the shard was resumed after a loss of data, and the open questions that were closed then.
-- Returns JSON: `now` and `resumed_at` (in Unix milliseconds), and `closed`, a list of {action, address}, where the
-- address is JSON. Returns '' if the shard was not resumed lately.
local resumed_at = redis.call('GET', shard .. ':resumed')
if not resumed_at then return '' end

local closed = {}
for _, action_id in ipairs(redis.call('LRANGE', shard .. ':closed', 0, -1)) do
  local action = load_action(action_id)
  local address = redis.call('HGET', action_key(action_id), 'address')
  if action and address then closed[#closed + 1] = {action = action, address = address} end
end
return cjson.encode({now = now(), resumed_at = tonumber(resumed_at), closed = closed})
