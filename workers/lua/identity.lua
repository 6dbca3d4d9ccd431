-- needs: identities, records
-- Return the person who has an id now, or whose data is stored under it.
-- args: name, is_key (whether the data is meant).
-- Returns the record of the person as JSON, '' when unknown.
local key = args.is_key and args.name or holder_of(args.name)
local person = person_of(key)
return person and encode_record(without_lost_number(person)) or ''
