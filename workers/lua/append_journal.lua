-- needs: conversation, inbox, keys
-- Append entries to the journal of the first waiting turn. The journal holds what its worker has
-- done so far; the next worker goes on there.
--
-- args:
--   epoch, token   of the worker's lease
--   seq            number of the turn
--   at             the place of the first new entry, from 0
--   ARGV[2]        the first new entry, and so on; the entry at place 0 identifies the turn
-- returns: 'ok'; or, with nothing stored, 'lost' (the lease), 'moved' (another turn is the first
--   one) or 'gap' (entries before the first new one are missing).
if not holds_lease() then return 'lost' end
local first = first_turn()
if not first or first.seq ~= args.seq then return 'moved' end

-- A journal of another turn is left over.
if args.at == 0 and redis.call('LINDEX', journal, 0) ~= ARGV[2] then redis.call('DEL', journal) end

local length = redis.call('LLEN', journal)
if args.at > length then return 'gap' end

-- The call may be repeated, so entries that are there already are skipped.
for index = 2 + length - args.at, #ARGV do redis.call('RPUSH', journal, ARGV[index]) end
redis.call('PEXPIRE', journal, KEEP_CONVERSATION_MS)
return 'ok'
