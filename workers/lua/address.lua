-- What a platform says of an address without being asked. ARGV: conversation, why it takes nothing, '' where it does.
if ARGV[2] == '' then
  redis.call('HDEL', lane, 'closed')
elseif redis.call('EXISTS', lane) == 1 then
  close(ARGV[2])
end
return 'ok'
