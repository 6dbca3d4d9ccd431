-- Return which thread of this chat asked a user something last, '' for none. The conversation is the chat itself.
-- args: user.
return redis.call('GET', shard .. ':question_place:' .. conversation .. ':' .. args.user) or ''
