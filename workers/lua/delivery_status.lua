-- needs: channel, deliveries, keys, outbox
-- Return the status of a conversation's last replies, why its address takes none ('' when it does), and the reply
-- that waits for the user to write: its number, since when, and why.
local since, why = held_since()
local waits = since and {string.match(redis.call('LINDEX', outbox, 0), '^%d+'), since, why} or {}
return {redis.call('HGETALL', deliveries), closed_reason(), waits}
