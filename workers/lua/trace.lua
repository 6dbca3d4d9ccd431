-- needs: actions, deliveries, keys
-- Return what is stored of a conversation's last turns, replies and open work, for `sayso trace`.
-- args: actions (ids of actions that are asked for).
local row, own = {}, redis.call('HMGET', conversation_key, 'last_turn', 'last_done_turn', 'lease_until', 'token', 'turn_attempts', 'reply_attempts', 'held_reply', 'closed_address')
for at = 1, 8 do row[at] = own[at] or '' end
local states = {}
for at, action_id in ipairs(args.actions) do
  local fields = redis.call('HMGET', action_key(action_id), 'state', 'decided_by_event', 'outcome_text', 'record', 'mac')
  for each = 1, 5 do fields[each] = fields[each] or '' end
  states[at] = fields
end
return {
  now(), redis.call('HGETALL', turn_records), redis.call('HGETALL', deliveries), redis.call('LRANGE', inbox, 0, -1),
  redis.call('LRANGE', outbox, 0, -1), redis.call('LRANGE', journal, 0, -1), row, states,
}
