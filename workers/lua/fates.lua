-- What became of a conversation's last replies, why its address takes none, '' where it does, and the reply that waits for
-- somebody to write: its number, since when, why. ARGV: conversation.
local since, why = held()
local waits = since and {string.match(redis.call('LINDEX', outbox, 0), '^%d+'), since, why} or {}
return {redis.call('HGETALL', deliveries), closed(), waits}
