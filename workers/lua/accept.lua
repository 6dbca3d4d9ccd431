-- Store a turn once and wake its conversation. ARGV: conversation, event, user, tapped action or '-', turn as JSON,
-- mailbox cap, milliseconds to remember the event, '1' if the bot must already be in the conversation, what to say when
-- the mailbox is full, RQ job...
local seen = shard .. ':seen:' .. conversation .. ':' .. ARGV[2]
local first = redis.call('GET', seen)
if first then return {'duplicate', first} end
if ARGV[8] == '1' and redis.call('EXISTS', lane) == 0 then return {'ignored', '0'} end
local busy = awaited()
if redis.call('LLEN', inbox) >= tonumber(ARGV[6]) then
  local told = number('told_full')
  if now() - told >= BUSY_NOTICE then
    redis.call('HSET', lane, 'told_full', now())
    say('-', ARGV[9])
    keep()
    if not busy then wake(10) end
  end
  return {'full', '0'}
end
local seq = redis.call('HINCRBY', lane, 'received', 1)
redis.call('RPUSH', inbox, table.concat({seq, now(), ARGV[3], ARGV[4], ARGV[5]}, ' '))
redis.call('SET', seen, seq, 'PX', ARGV[7])
keep()
if not busy then wake(10) end
return {'new', tostring(seq)}
