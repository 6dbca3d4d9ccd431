-- Whether a question waits for this user's answer. ARGV: conversation, user.
return redis.call('EXISTS', live(ARGV[2]))
