-- Before a halted server goes on: from here on all numbers of this shard are beyond all that were ever given. ARGV: -, floor.
-- The audit log begins a new chain there: what is missing before it stays visible.
local floor, head = tonumber(ARGV[2]), shard .. ':audit:head'
if floor > tonumber(redis.call('GET', shard .. ':floor') or '0') then redis.call('SET', shard .. ':floor', ARGV[2]) end
local n = tonumber(string.match(redis.call('GET', head) or '', '^%d+') or ARGV[2])
if n < floor then redis.call('SET', head, ARGV[2] .. ' ' .. NO_HEAD) end
return 'ok'
