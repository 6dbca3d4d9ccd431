-- needs: channel, conversation, keys
-- Note that a platform says an address takes messages again, or why it takes none.
-- args: reason ('' when it takes messages), late_ms (a message from the user within this time outweighs the report; 0
-- for a report about the last message).
local wrote = redis.call('LLEN', inbox) > 0 or now() - lane_number('heard') < args.late_ms
if args.late_ms > 0 and wrote then return 'ok' end
if args.reason == '' then
  redis.call('HDEL', lane, 'closed', 'barred')
elseif redis.call('EXISTS', lane) == 1 then
  close_address(args.reason)
end
return 'ok'
