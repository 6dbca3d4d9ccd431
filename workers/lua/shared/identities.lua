-- needs: records
-- Which ids belong to one person of a channel. Ids are hashed in names of keys. A record has `key`
-- (the id under which everything of the person is stored), `number`, `user_id` and `ids`, as
-- Identity in Python.
-- args: people (the prefix of the keys of the channel's people, if it is not the script's own).
local people = args.people or shard

-- The key of the person who has an id now.
local function holder_key(name)
  return people .. ':holder:' .. redis.sha1hex(name)
end

local function holder_of(name)
  return name ~= '' and redis.call('GET', holder_key(name)) or nil
end

local function person_key(key)
  return people .. ':person:' .. redis.sha1hex(key)
end

local function person_of(key)
  local record = key and redis.call('GET', person_key(key))
  return record and decode_record(record) or nil
end

-- Take away a number that another person has now. Return the person as a caller reads them.
local function without_lost_number(person)
  if holder_of(person.number) ~= person.key then person.number = '' end
  return person
end
