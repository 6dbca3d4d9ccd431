-- How far a turn has come. ARGV: conversation, event, the event as JSON. One that waits is found where it stands: it may
-- wait for longer than events are remembered.
for _, waiting in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
  if string.find(waiting, '"event_id":' .. ARGV[3], 1, true) then return 'waits' end
end
return redis.call('EXISTS', shard .. ':seen:' .. conversation .. ':' .. ARGV[2]) == 1 and 'done' or 'unknown'
