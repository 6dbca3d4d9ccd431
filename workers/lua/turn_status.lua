-- needs: keys
-- Find out whether a turn waits or is done.
--
-- args:
--   event        the digest of the event's id
--   event_json   the event's id as it is written in the turn's JSON
-- returns: 'waits' (or is being worked on), 'done' or 'unknown'.

-- A turn may wait for longer than its event is remembered, so the inbox is searched first.
for _, entry in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
  if string.find(entry, '"event_id":' .. args.event_json, 1, true) then return 'waits' end
end
return redis.call('EXISTS', event_key(args.event)) == 1 and 'done' or 'unknown'
