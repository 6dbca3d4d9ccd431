-- Before a halted server resumes: raise the numbers of a shard above all that were ever given out. The audit log
-- begins a new chain there, so the gap stays visible.
-- args: floor (lowest new number), restored (from a backup with its ledger: the audit log continues where both end).
local floor, head = args.floor, shard .. ':audit:head'
if floor > tonumber(redis.call('GET', shard .. ':floor') or '0') then redis.call('SET', shard .. ':floor', floor) end
if args.restored then
  redis.call('SET', head, '0 ' .. NO_HEAD, 'NX')
  return 'ok'
end
local n = tonumber(string.match(redis.call('GET', head) or '', '^%d+') or floor)
redis.call('SET', shard .. ':resumed', string.format('%d', now()), 'PX', KEEP_LOSS_MS)
if n < floor then redis.call('SET', head, string.format('%d %s', floor, NO_HEAD)) end
return 'ok'
