-- Save which thread of a chat asked a user something last. The conversation is the chat itself,
-- which has no thread.
--
-- args:
--   user    the id of the scope
--   place   the thread and the action that it asks about, as Python wrote them
-- returns: 'ok'.
local key = shard .. ':question_place:' .. conversation .. ':' .. args.user
redis.call('SET', key, args.place, 'PX', KEEP_ACTION_MS)
return 'ok'
