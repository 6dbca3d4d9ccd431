-- What a platform says of an address without being asked. ARGV: conversation, why it takes nothing, '' where it does, for
-- how many milliseconds whoever wrote knows better.
local wrote = redis.call('LLEN', inbox) > 0 or now() - number('heard') < tonumber(ARGV[3])
if ARGV[3] ~= '0' and wrote then return 'ok' end
if ARGV[2] == '' then
  redis.call('HDEL', lane, 'closed')
elseif redis.call('EXISTS', lane) == 1 then
  close(ARGV[2])
end
return 'ok'
