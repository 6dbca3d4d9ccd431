-- needs: identities
-- Return the sender of a message.
-- args: user_id, number and parent (the ids that the message names, '' for none), store (note them
-- as the sender's), briefly (only for as long as a person who may not talk is known).
-- Returns the record of the sender as JSON.

-- Return the key of a sender whose ids of the platform are unknown.
local function key_by_number()
  local holder = holder_of(args.number)
  if args.user_id == '' then return holder or args.number end
  -- The person wrote from this number before the platform sent ids: the conversation goes on. If
  -- its person has an id, it is another one, and the number was given to the sender since: they must
  -- not get what is the other's.
  local person = person_of(holder)
  if person and person.user_id == '' then return holder end
  return args.user_id
end

local key = holder_of(args.user_id) or holder_of(args.parent) or key_by_number()
local stranger = {v = RECORD_VERSION, key = key, number = '', user_id = '', ids = {}}
local person = person_of(key) or stranger
if not args.store then return shown(person) end

local function add(name)
  if name == '' then return end
  for at, known in ipairs(person.ids) do
    if known == name then table.remove(person.ids, at) break end
  end
  table.insert(person.ids, name)
  redis.call('SET', holder_key(name), key)  -- the newest holder of a number gets the messages to it
end

local function forget_oldest()
  local oldest = table.remove(person.ids, 1)
  if holder_of(oldest) == key then redis.call('DEL', holder_key(oldest)) end
end

add(args.parent)
add(args.number)
add(args.user_id)
while #person.ids > MAX_IDS do forget_oldest() end
if args.number ~= '' then person.number = args.number end
if args.user_id ~= '' then person.user_id = args.user_id end

-- A number alone may be given to another person, who is then taken for this one: it is kept no
-- longer than what is stored under it.
local ttl = person.user_id == '' and KEEP_CONVERSATION_MS or KEEP_IDENTITY_MS
if args.briefly then ttl = math.max(KEEP_STRANGER_MS, redis.call('PTTL', person_key(key))) end
redis.call('SET', person_key(key), cjson.encode(person), 'PX', ttl)
for _, name in ipairs(person.ids) do
  if holder_of(name) == key then redis.call('PEXPIRE', holder_key(name), ttl) end
end
return shown(person)
