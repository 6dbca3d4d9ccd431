-- needs: identities
-- Forget the ids of the person whose data is stored under an id.
-- args: key.
local person = person_of(args.key)
if not person then return 'ok' end
for _, name in ipairs(person.ids) do
  if holder_of(name) == args.key then redis.call('DEL', holder_key(name)) end
end
redis.call('DEL', person_key(args.key))
return 'ok'
