-- What became of the last replies of a conversation. An entry is "state time attempts receipt reason".
local deliveries = shard .. ':delivery:' .. conversation

-- Record the state of a reply, unless the platform has reported one before. Return whether it was recorded.
local function record_delivery(number, state, attempts, receipt, reason)
  local entry = table.concat({state, now(), attempts, receipt ~= '' and receipt or '-', reason or ''}, ' ')
  local new = redis.call('HSETNX', deliveries, number, entry) == 1
  redis.call('HDEL', deliveries, number - MAX_DELIVERIES)
  redis.call('PEXPIRE', deliveries, KEEP_DELIVERY_MS)
  return new
end

-- Add an undelivered reply to a list for the operator.
local function add_undelivered(list, entry)
  redis.call('LPUSH', list, cjson.encode(entry))
  redis.call('LTRIM', list, 0, MAX_UNDELIVERED - 1)
  redis.call('PEXPIRE', list, KEEP_CONVERSATION_MS)
end

-- Return the platform's id of a reply that it reported as arrived, else ''.
local function arrived_receipt(number)
  local state, receipt = string.match(redis.call('HGET', deliveries, number) or '', '^(%S+) %d+ %d+ (%S+)')
  return (state == 'sent' or state == 'delivered' or state == 'read') and receipt or ''
end
