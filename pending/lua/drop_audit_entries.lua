-- Drop the audit entries of a shard that a ledger has now.
--
-- args:
--   first, last   the numbers of the first and the last entry that the ledger has
--   ARGV[2]       and following: texts of the log that are no entries, which the ledger has, too
-- returns: how many texts were dropped; 0 if the call is repeated.
local log = shard .. ':audit'
local strange = {}
for at = 2, #ARGV do strange[ARGV[at]] = true end

local dropped = 0
while true do
  local text = redis.call('LINDEX', log, 0)
  if not text then break end

  local number = tonumber(string.match(text, '^{"n":(%d+),') or '')
  local is_stored = number and number >= args.first and number <= args.last
  if not is_stored and not strange[text] then break end

  redis.call('LPOP', log)
  if is_stored then redis.call('SET', log .. ':drained', string.format('%d', number)) end
  dropped = dropped + 1
end
return dropped
