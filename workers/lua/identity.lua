-- needs: identities
-- Return the person who has an id now, or whose data is stored under it.
-- args: name, is_key (whether the data is meant).
-- Returns the record of the person as JSON, '' when unknown.
if args.is_key then return shown(person_of(args.name)) end
return shown(person_of(holder_of(args.name)))
