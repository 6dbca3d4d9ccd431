-- needs: conversation, keys
-- Append entries to the journal of the first waiting turn.
-- ARGV: conversation, epoch, token, number of the turn, index of the first entry (from 0), entries. Entry 0
-- identifies the turn.
if not holds_lease(ARGV[2], ARGV[3]) then return 'lost' end
if string.match(redis.call('LINDEX', inbox, 0) or '', '^%d+') ~= ARGV[4] then return 'moved' end
local at = tonumber(ARGV[5])
if at == 0 and redis.call('LINDEX', journal, 0) ~= ARGV[6] then redis.call('DEL', journal) end
local kept = redis.call('LLEN', journal)
if at > kept then return 'gap' end
for index = 6 + kept - at, #ARGV do redis.call('RPUSH', journal, ARGV[index]) end
redis.call('PEXPIRE', journal, KEEP_CONVERSATION_MS)
return 'ok'
