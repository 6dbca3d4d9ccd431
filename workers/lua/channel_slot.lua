-- needs: channel
-- Book a time slot for a reply, on a cluster, where a channel is on a node of its own. The same
-- attempt gets the same slot again.
--
-- args:
--   gap_ms   between two messages of the channel, 0 if it has no limit
--   mark     the reply and its attempt, as "number:attempt"
-- returns: in how many milliseconds the reply may be sent.
store_gap(shard, args.gap_ms)

local slot_key = shard .. ':slot:' .. conversation
local stored = redis.call('GET', slot_key) or ''
local booked = tonumber(string.match(stored, '^' .. args.mark .. ' (%d+)$') or '')
local slot = take_slot(shard, booked)
if not slot then return 0 end

local wait_ms = math.max(0, slot - now())
redis.call('SET', slot_key, string.format('%s %d', args.mark, slot), 'PX', wait_ms + ASKED_AGAIN_MS)
return wait_ms
