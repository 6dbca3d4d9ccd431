-- needs: channel
-- Stop a whole channel for a while, on a cluster, where a channel is on a node of its own.
--
-- args:
--   ms     how long, in milliseconds
--   mark   the reply that goes first after that, as "number:attempt"; '' for none
-- returns: 'ok'.
local later = silence(shard, now() + args.ms)
if args.mark ~= '' then
  local slot_key = shard .. ':slot:' .. conversation
  local ttl = later - now() + ASKED_AGAIN_MS
  redis.call('SET', slot_key, string.format('%s %d', args.mark, later), 'PX', ttl)
end
return 'ok'
