-- Before a halted server resumes: raise the numbers of a shard above all that were ever given out. The audit log
-- begins a new chain there, so the gap stays visible.
-- ARGV: -, lowest new number.
local floor, head = tonumber(ARGV[2]), shard .. ':audit:head'
if floor > tonumber(redis.call('GET', shard .. ':floor') or '0') then redis.call('SET', shard .. ':floor', ARGV[2]) end
local n = tonumber(string.match(redis.call('GET', head) or '', '^%d+') or ARGV[2])
if n < floor then redis.call('SET', head, ARGV[2] .. ' ' .. NO_HEAD) end
return 'ok'
