-- needs: conversation, keys
-- Append entries to the journal of the first waiting turn.
-- args: epoch, token, seq (number of the turn), at (index of the first entry, from 0).
-- From ARGV[2]: the entries. Entry 0 identifies the turn.
if not holds_lease() then return 'lost' end
if tonumber(string.match(redis.call('LINDEX', inbox, 0) or '', '^%d+')) ~= args.seq then return 'moved' end
if args.at == 0 and redis.call('LINDEX', journal, 0) ~= ARGV[2] then redis.call('DEL', journal) end
local kept = redis.call('LLEN', journal)
if args.at > kept then return 'gap' end
for index = 2 + kept - args.at, #ARGV do redis.call('RPUSH', journal, ARGV[index]) end
redis.call('PEXPIRE', journal, KEEP_CONVERSATION_MS)
return 'ok'
