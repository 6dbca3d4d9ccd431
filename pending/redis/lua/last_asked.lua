-- Which thread of this chat asked a person something last, '' for none. ARGV: conversation of the chat itself, user.
return redis.call('GET', shard .. ':asked:' .. conversation .. ':' .. ARGV[2]) or ''
