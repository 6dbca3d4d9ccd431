-- needs: identities
-- Forget the ids of a person.
--
-- args:
--   key   the id under which the person's data is stored
-- returns: 'ok'.
local person = load_person(args.key)
if not person then return 'ok' end

-- An id may have passed to another person since.
for _, name in ipairs(person.ids) do
  if holder_of(name) == args.key then redis.call('DEL', holder_key(name)) end
end
redis.call('DEL', person_key(args.key))
return 'ok'
