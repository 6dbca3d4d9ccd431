-- needs: conversation, keys, outbox, overload, queue
-- Send a notice to a user whose turn was refused: once in BUSY_NOTICE_MS, and while not too many
-- notices wait.
--
-- args:
--   max_conversations   how many conversations of this shard may have work
--   ARGV[2]             the record of the notice; from ARGV[3]: the hash of the RQ job
-- returns: 'sent' if the notice was stored, else ''.
if now() - conversation_number('refusal_sent_at') < BUSY_NOTICE_MS then return '' end
local was_expected = is_worker_expected()
if not was_expected and is_overloaded(args.max_conversations, 1) then return '' end

-- The user has written, although the turn is not stored: the platform takes messages again.
redis.call('HSET', conversation_key, 'refusal_sent_at', now(), 'user_message_at', now())
redis.call('HDEL', conversation_key, 'closed_address', 'opted_out')
clear_hold()

append_reply(ARGV[2])
keep_conversation()
if not was_expected then wake_worker(3) end
return 'sent'
