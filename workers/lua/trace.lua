-- needs: actions, deliveries, keys
-- Load what is stored of a conversation's last turns, replies and open work, for `sayso trace`.
--
-- args:
--   action_ids   of the actions that are asked for
-- returns: JSON with `now` (in Unix milliseconds), `turn_records` and `deliveries` (objects of
--   texts, by number), `asks` (the actions that these replies asked for, by number), `inbox`,
--   `outbox` and `journal` (lists of entries), `conversation` (fields of its record) and `actions`
--   (fields by action id; an action or a field that is not stored is left out).

-- Return those fields of a hash that are set, of these names.
local function load_fields(key, names)
  local fields = {}
  local values = redis.call('HMGET', key, unpack(names))
  for at, name in ipairs(names) do
    fields[name] = values[at] or nil
  end
  return fields
end

-- Return all fields of a hash.
local function load_hash(key)
  local fields = {}
  local all = redis.call('HGETALL', key)
  for at = 1, #all, 2 do
    fields[all[at]] = all[at + 1]
  end
  return fields
end

local actions = {}
for _, action_id in ipairs(args.action_ids) do
  local fields = load_fields(action_key(action_id),
    {'state', 'decided_by_event', 'outcome_text', 'record', 'mac', 'requests', 'votes'})
  if fields.state then actions[action_id] = fields end
end

local asks = {}
for _, number in ipairs(redis.call('HKEYS', deliveries)) do
  asks[number] = redis.call('HGET', conversation_key, 'asks:' .. number) or nil
end

return cjson.encode({
  now = now(),
  turn_records = load_hash(turn_records),
  deliveries = load_hash(deliveries),
  asks = asks,
  inbox = redis.call('LRANGE', inbox, 0, -1),
  outbox = redis.call('LRANGE', outbox, 0, -1),
  journal = redis.call('LRANGE', journal, 0, -1),
  conversation = load_fields(conversation_key, {
    'last_turn', 'lease_until', 'token', 'turn_attempts', 'reply_attempts', 'held_reply',
    'closed_address',
  }),
  actions = actions,
})
