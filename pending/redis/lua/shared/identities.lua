-- Which ids belong to one person of a channel. Ids are hashed in names of keys. A record has `key`
-- (the id under which everything of the person is stored), `number`, `user_id` and `ids`, as
-- Identity in Python.

-- The key of the person who has an id now.
local function holder_key(name)
  return shard .. ':holder:' .. redis.sha1hex(name)
end

local function holder_of(name)
  return name ~= '' and redis.call('GET', holder_key(name)) or nil
end

local function person_key(key)
  return shard .. ':person:' .. redis.sha1hex(key)
end

local function person_of(key)
  local record = key and redis.call('GET', person_key(key))
  return record and cjson.decode(record) or nil
end

-- Return a record as its caller reads it: without a number that another person has now.
local function shown(person)
  if not person then return '' end
  if holder_of(person.number) ~= person.key then person.number = '' end
  return cjson.encode(person)
end
