-- What became of a conversation's last replies, and why its address takes none, '' where it does. ARGV: conversation.
local turns, reason = string.match(redis.call('HGET', lane, 'closed') or '', '^(%d+) (.*)$')
local closed = turns and tonumber(turns) == number('received')  -- whoever writes again can be reached again
return {redis.call('HGETALL', deliveries), closed and reason or ''}
