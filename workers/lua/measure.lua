-- needs: actions, inbox, keys, outbox
-- Count what waits in this shard, for metrics.
--
-- args:
--   most   how many conversations are looked at, the most overdue first
-- returns: JSON with `conversations` (that have work, a lease or a timer), `turns` and `replies`
--   (that wait in those that were looked at), `oldest_turn` and `oldest_reply` (their ages in
--   milliseconds; a reply that is held until its user writes has none), the lengths of the lists
--   for the operator (`dead`, `failed`, `ambiguous`, `held`), `audit` (entries that no worker has
--   collected yet), `approvals` (actions that wait for other people) and `oldest_approval` (the age
--   of the oldest of them).
local turns = 0
local replies = 0
local oldest_turn = 0
local oldest_reply = 0

for _, name in ipairs(redis.call('ZRANGE', due, 0, args.most - 1)) do
  local its_inbox = shard .. ':inbox:' .. name
  local its_outbox = shard .. ':outbox:' .. name
  turns = turns + redis.call('LLEN', its_inbox)
  replies = replies + redis.call('LLEN', its_outbox)

  local first_entry = redis.call('LINDEX', its_inbox, 0)
  if first_entry then
    oldest_turn = math.max(oldest_turn, now() - parse_turn(first_entry).received_at)
  end

  -- `append_reply` puts the time at the end of a record.
  local first_reply = redis.call('LINDEX', its_outbox, 0) or ''
  local appended_at = string.match(first_reply, ', "at": (%d+)}$')
  if appended_at and not redis.call('ZSCORE', held_conversations, name) then
    oldest_reply = math.max(oldest_reply, now() - appended_at)
  end
end

local oldest_approval = 0
local first_waiting = redis.call('ZRANGE', waiting_for_others, 0, 0, 'WITHSCORES')
if first_waiting[2] then oldest_approval = math.max(0, now() - tonumber(first_waiting[2])) end

return cjson.encode({
  conversations = redis.call('ZCARD', due),
  turns = turns,
  oldest_turn = oldest_turn,
  replies = replies,
  oldest_reply = oldest_reply,
  dead = redis.call('LLEN', shard .. ':dead'),
  failed = redis.call('LLEN', shard .. ':failed'),
  ambiguous = redis.call('LLEN', shard .. ':ambiguous'),
  held = redis.call('ZCARD', held_conversations),
  audit = redis.call('LLEN', shard .. ':audit'),
  approvals = redis.call('ZCARD', waiting_for_others),
  oldest_approval = oldest_approval,
})
