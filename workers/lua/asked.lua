-- Whether a question waits for this user's answer, or this event came in before. ARGV: conversation, user, event.
return redis.call('EXISTS', live(ARGV[2]), shard .. ':seen:' .. conversation .. ':' .. ARGV[3])
