-- needs: keys
-- Return 'waits', 'done' or 'unknown' for a turn. A turn may wait for longer than its event id is remembered, so the
-- inbox is searched first.
-- ARGV: conversation, event id, event id as JSON.
for _, waiting in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
  if string.find(waiting, '"event_id":' .. ARGV[3], 1, true) then return 'waits' end
end
return redis.call('EXISTS', shard .. ':seen:' .. conversation .. ':' .. ARGV[2]) == 1 and 'done' or 'unknown'
