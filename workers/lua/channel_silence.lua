-- needs: channel
-- On a cluster, where a channel is on a node of its own: stop the whole channel for a while.
-- args: ms, mark (reply and attempt that keep their place in line, '' for none).
local later = silence(shard, now() + args.ms)
if args.mark ~= '' then
  local own = shard .. ':slot:' .. conversation
  redis.call('SET', own, string.format('%s %d', args.mark, later), 'PX', later - now() + ASKED_AGAIN_MS)
end
return 'ok'
