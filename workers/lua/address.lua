-- needs: channel, conversation, keys
-- Note that a platform says an address takes messages again, or why it takes none.
-- ARGV: conversation, reason or '' when it takes messages, milliseconds within which a message from the user
-- outweighs this report.
local wrote = redis.call('LLEN', inbox) > 0 or now() - lane_number('heard') < tonumber(ARGV[3])
if ARGV[3] ~= '0' and wrote then return 'ok' end
if ARGV[2] == '' then
  redis.call('HDEL', lane, 'closed')
elseif redis.call('EXISTS', lane) == 1 then
  close_address(ARGV[2])
end
return 'ok'
