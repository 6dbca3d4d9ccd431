-- needs: records
-- Which ids belong to one person of a channel.
--
-- A platform may know one person by several ids, such as a phone number and an id of its own. The
-- record of a person has `key` (the id under which everything of the person is stored), `number`,
-- `user_id` and `ids`, as `Identity` in Python. Ids are hashed in the names of keys, because a
-- phone number must not stand there.
--
-- args:
--   people   the prefix of the keys of the channel's people; absent if it is the script's own
--            prefix
local people = args.people or shard

-- A string: the key of the person who has an id now.
local function holder_key(name)
  return people .. ':holder:' .. redis.sha1hex(name)
end

-- Return the key of the person who has an id now, nil or false for none.
local function holder_of(name)
  if name == '' then return nil end
  return redis.call('GET', holder_key(name))
end

-- A string: the record of a person, as JSON.
local function person_key(key)
  return people .. ':person:' .. redis.sha1hex(key)
end

-- Return the record of a person, nil for an unknown one.
local function load_person(key)
  if not key then return nil end
  local record = redis.call('GET', person_key(key))
  if not record then return nil end
  return decode_record(record)
end

-- Take a number away from a person if another one has it now. Return the person.
local function without_lost_number(person)
  if holder_of(person.number) ~= person.key then person.number = '' end
  return person
end
