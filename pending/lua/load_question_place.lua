-- Load which thread of a chat asked a user something last. The conversation is the chat itself,
-- which has no thread.
--
-- args:
--   user   the id of the scope
-- returns: what `save_question_place` saved, '' for nothing.
return redis.call('GET', shard .. ':question_place:' .. conversation .. ':' .. args.user) or ''
