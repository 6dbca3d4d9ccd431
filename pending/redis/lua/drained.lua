-- Entries of the audit log that a ledger has now: drop them. ARGV: '-', number of the first, number of the last, texts
-- that the ledger has although they are no entries... Sent again, it finds nothing more to drop.
local log = shard .. ':audit'
local strange = {}
for at = 4, #ARGV do strange[ARGV[at]] = true end
local dropped = 0
while true do
  local text = redis.call('LINDEX', log, 0)
  if not text then break end
  local n = tonumber(string.match(text, '^{"n":(%d+),') or '')
  local stored = n and n >= tonumber(ARGV[2]) and n <= tonumber(ARGV[3])
  if not stored and not strange[text] then break end
  redis.call('LPOP', log)
  if stored then redis.call('SET', log .. ':drained', string.format('%d', n)) end
  dropped = dropped + 1
end
return dropped
