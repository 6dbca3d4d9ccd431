-- needs: keys
-- Count what waits in this shard.
-- args: most (conversations that are looked at, the most overdue first).
-- Returns pairs of name and number. Ages are in milliseconds, of the oldest turn and reply that were looked at; a reply
-- that is held until its person writes has none.
local turns, replies, oldest_turn, oldest_reply = 0, 0, 0, 0
for _, name in ipairs(redis.call('ZRANGE', due, 0, args.most - 1)) do
  local waiting_turns, waiting_replies = shard .. ':inbox:' .. name, shard .. ':outbox:' .. name
  turns, replies = turns + redis.call('LLEN', waiting_turns), replies + redis.call('LLEN', waiting_replies)
  local received = string.match(redis.call('LINDEX', waiting_turns, 0) or '', '^%d+ (%d+) ')
  if received then oldest_turn = math.max(oldest_turn, now() - received) end
  local appended = string.match(redis.call('LINDEX', waiting_replies, 0) or '', ', "at": (%d+)}$')
  if appended and not redis.call('ZSCORE', shard .. ':held', name) then
    oldest_reply = math.max(oldest_reply, now() - appended)
  end
end
return {
  'conversations', redis.call('ZCARD', due), 'turns', turns, 'oldest_turn', oldest_turn, 'replies', replies,
  'oldest_reply', oldest_reply, 'dead', redis.call('LLEN', shard .. ':dead'),
  'failed', redis.call('LLEN', shard .. ':failed'), 'ambiguous', redis.call('LLEN', shard .. ':ambiguous'),
  'held', redis.call('ZCARD', shard .. ':held'), 'audit', redis.call('LLEN', shard .. ':audit'),
}
