-- Note which thread of this chat asked a user something last. The conversation is the chat itself.
-- args: user, place.
redis.call('SET', shard .. ':question_place:' .. conversation .. ':' .. args.user, args.place, 'PX', KEEP_ACTION_MS)
return 'ok'
