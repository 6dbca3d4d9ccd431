-- Drop the audit entries that a ledger has now.
-- args: first and last (numbers of entries).
-- From ARGV[2]: texts that the ledger has although they are no entries. Sent again, the script finds nothing to drop.
local log = shard .. ':audit'
local strange = {}
for at = 2, #ARGV do strange[ARGV[at]] = true end
local dropped = 0
while true do
  local text = redis.call('LINDEX', log, 0)
  if not text then break end
  local n = tonumber(string.match(text, '^{"n":(%d+),') or '')
  local stored = n and n >= args.first and n <= args.last
  if not stored and not strange[text] then break end
  redis.call('LPOP', log)
  if stored then redis.call('SET', log .. ':drained', string.format('%d', n)) end
  dropped = dropped + 1
end
return dropped
