-- Note which thread of this chat asked a user something last. The conversation is the chat itself.
-- args: user, note.
redis.call('SET', shard .. ':asked:' .. conversation .. ':' .. args.user, args.note, 'PX', KEEP_ACTION_MS)
return 'ok'
