-- Before a halted server resumes: raise the numbers of a shard above all that were ever given out.
-- The audit log begins a new chain there, so the gap stays visible.
--
-- args:
--   floor      the lowest new number
--   restored   true if the data is from a backup with its ledger: the audit log goes on where both
--              end
-- returns: 'ok'.
local floor = args.floor
local head = shard .. ':audit:head'
local earlier_floor = tonumber(redis.call('GET', shard .. ':floor') or '0')
if floor > earlier_floor then redis.call('SET', shard .. ':floor', floor) end

if args.restored then
  redis.call('SET', head, '0 ' .. NO_HEAD, 'NX')
  return 'ok'
end

redis.call('SET', shard .. ':resumed', string.format('%d', now()), 'PX', KEEP_LOSS_MS)
local last_entry = tonumber(string.match(redis.call('GET', head) or '', '^%d+') or floor)
if last_entry < floor then redis.call('SET', head, string.format('%d %s', floor, NO_HEAD)) end
return 'ok'
