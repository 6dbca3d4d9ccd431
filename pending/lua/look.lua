-- The live action of a scope, and this server's time, by which its window is judged. ARGV: conversation, user.
local fields = pending(redis.call('GET', live(ARGV[2])))
if #fields > 0 then
  table.insert(fields, 'looked')
  table.insert(fields, now())
end
return fields
