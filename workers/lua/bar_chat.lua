-- needs: keys
-- Record that the bot may not write in any thread of a chat, or that it may again.
--
-- That is stored with the conversation of the whole chat, which has no thread. For BARRED_MS
-- messages are dropped there; then the next one is answered, to try again.
--
-- args:
--   barred   true if the bot may not write
-- returns: 'ok'.
if not args.barred then
  redis.call('HDEL', conversation_key, 'barred_until')
  return 'ok'
end

local is_known = redis.call('EXISTS', conversation_key) == 1
redis.call('HSET', conversation_key, 'barred_until', string.format('%d', now() + BARRED_MS))
-- A conversation that exists only for this mark is deleted with it.
if not is_known then redis.call('PEXPIRE', conversation_key, BARRED_MS) end
return 'ok'
