-- Note which thread of this chat asked a person something last. ARGV: conversation of the chat itself, user, note.
redis.call('SET', shard .. ':asked:' .. conversation .. ':' .. ARGV[2], ARGV[3], 'PX', KEEP_ACTION_MS)
return 'ok'
