-- needs: channel
-- On a cluster, where a channel is on a node of its own: book a time slot for a reply, once for each attempt.
-- args: gap_ms (between two messages of the channel, 0 when it has no limit), mark (reply and attempt).
-- Returns in how many milliseconds the reply may be sent, -1 when no limit is known.
if args.gap_ms > 0 then
  redis.call('HSET', shard, 'gap_ms', args.gap_ms)
  redis.call('PEXPIRE', shard, math.max(KEEP_RATE_MS, redis.call('PTTL', shard)))
end
local own = shard .. ':slot:' .. conversation
local slot = take_slot(shard, tonumber(string.match(redis.call('GET', own) or '', '^' .. args.mark .. ' (%d+)$') or '-1'))
if not slot then return -1 end
redis.call('SET', own, string.format('%s %d', args.mark, slot), 'PX', math.max(0, slot - now()) + ASKED_AGAIN_MS)
return math.max(0, slot - now())
