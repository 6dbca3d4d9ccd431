-- The first reply is sent, or never will be. ARGV: conversation, epoch, token, reply number, 'sent' or 'dead', detail.
if not holds(ARGV[2], ARGV[3]) then return {'lost'} end
local head = redis.call('LINDEX', outbox, 0)
local said, pid = string.match(head or '', '^(%d+) (%S+) ')
if said ~= ARGV[4] then return {'gone', view()} end
redis.call('LPOP', outbox)
redis.call('HSET', lane, 'attempts', 0)
redis.call('HDEL', lane, 'sending', 'suspect')
if ARGV[5] == 'dead' then
  local entry = cjson.encode({conversation = conversation, reason = ARGV[6], at = now(), reply = head})
  redis.call('LPUSH', shard .. ':dead', entry)
  redis.call('LTRIM', shard .. ':dead', 0, MAX_DEAD - 1)
  if pid ~= '-' and redis.call('HGET', record(pid), 'state') == 'armed' then enter(pid, {'expired'}) end
elseif pid ~= '-' then
  show(pid, number('received'))
end
return {'ok', view()}
