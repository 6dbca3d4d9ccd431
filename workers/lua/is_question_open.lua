-- needs: keys
-- Check whether a question waits for this user's answer, or this event was received before.
-- ARGV: conversation, user, event id.
return redis.call('EXISTS', live_key(ARGV[2]), shard .. ':seen:' .. conversation .. ':' .. ARGV[3])
