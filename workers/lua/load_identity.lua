-- needs: identities, records
-- Load a person by an id.
--
-- args:
--   name     the id
--   is_key   true for the person whose data is stored under the id, false for the one who has it
--            now
-- returns: the record of the person as JSON, '' if unknown.
local key = args.name
if not args.is_key then key = holder_of(args.name) end
local person = load_person(key)
if not person then return '' end
return encode_record(without_lost_number(person))
