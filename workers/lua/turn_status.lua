-- needs: keys
-- Return 'waits', 'done' or 'unknown' for a turn. A turn may wait for longer than its event id is remembered, so the
-- inbox is searched first.
-- args: event (the digest of its id), event_json (the event id as it is written in the turn's JSON).
for _, waiting in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
  if string.find(waiting, '"event_id":' .. args.event_json, 1, true) then return 'waits' end
end
return redis.call('EXISTS', shard .. ':event:' .. conversation .. ':' .. args.event) == 1 and 'done' or 'unknown'
