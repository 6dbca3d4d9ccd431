-- What became of the last replies of a conversation.

-- A hash by the numbers of replies. An entry is the text "state at attempts receipt reason": the
-- state (`DeliveryState` in Python), since when (in Unix milliseconds), the number of attempts, the
-- platform's id of the message ('-' if unknown), and why the reply did not arrive ('' for no
-- reason).
local deliveries = shard .. ':delivery:' .. conversation

-- Return the parts of an entry by name.
local function parse_delivery(entry)
  local state, at, attempts, receipt, reason =
    string.match(entry, '^(%S+) (%d+) (%d+) (%S+) ?(.*)$')
  return {
    state = state,
    at = tonumber(at),
    attempts = tonumber(attempts),
    receipt = receipt,
    reason = reason,
  }
end

-- Return the delivery of a reply by name, nil if none is stored.
local function load_delivery(number)
  local entry = redis.call('HGET', deliveries, number)
  if not entry then return nil end
  return parse_delivery(entry)
end

-- Store the state of a reply, unless one is stored: what the platform reported before stays. Return
-- whether it was stored.
local function record_delivery(number, state, attempts, receipt, reason)
  if receipt == '' then receipt = '-' end
  local entry = table.concat({state, now(), attempts, receipt, reason or ''}, ' ')
  local is_new = redis.call('HSETNX', deliveries, number, entry) == 1
  redis.call('HDEL', deliveries, number - MAX_DELIVERIES)
  redis.call('PEXPIRE', deliveries, KEEP_DELIVERY_MS)
  return is_new
end

-- Add an undelivered reply to a list for the operator. `entry`: its fields, stored as JSON.
local function add_undelivered(list, entry)
  redis.call('LPUSH', list, cjson.encode(entry))
  redis.call('LTRIM', list, 0, MAX_UNDELIVERED - 1)
  redis.call('PEXPIRE', list, KEEP_CONVERSATION_MS)
end

-- Return whether the platform took a reply and has not reported since that it failed.
local function has_arrived(delivery)
  return delivery.state == 'sent' or delivery.state == 'delivered' or delivery.state == 'read'
end

-- Return the platform's id of a reply that the platform reported as arrived ('-' if it gave none),
-- '' for any other reply.
local function arrived_receipt(number)
  local delivery = load_delivery(number)
  if not delivery or not has_arrived(delivery) then return '' end
  return delivery.receipt
end
