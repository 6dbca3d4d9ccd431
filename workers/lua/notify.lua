-- needs: conversation, inbox, keys, outbox, queue
-- Send a notice to a user whose turn was refused: once a minute, and while not too many notices wait.
-- args: max_conversations (of this shard, with work).
-- ARGV[2]: the outbox entry; from ARGV[3]: the hash of the RQ job.
-- Returns 'sent' when the notice was stored, else ''.
if now() - conversation_number('refusal_sent_at') < BUSY_NOTICE_MS then return '' end
local coming = is_worker_expected()
if not coming and is_overloaded(args.max_conversations, 1) then return '' end
redis.call('HSET', conversation_key, 'refusal_sent_at', now(), 'user_message_at', now())
redis.call('HDEL', conversation_key, 'closed_address', 'opted_out')
clear_hold()
append_reply('-', ARGV[2])
keep_conversation()
if not coming then wake_worker(3) end
return 'sent'
