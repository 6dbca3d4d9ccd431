-- needs: identities, records
-- The person who sent a message, found by the ids that the message names.
--
-- args:
--   user_id   the platform's id of the person, which never passes to another one, '' for none
--   number    the phone number, which may pass to another person, '' for none
--   parent    an id like `user_id` that several accounts of the bot's owner share, '' for none

-- Return the key of a sender whose ids of the platform are unknown.
local function key_by_number()
  local holder = holder_of(args.number)
  if args.user_id == '' then return holder or args.number end

  -- The person wrote from this number before the platform sent ids: the conversation goes on. If
  -- its person has an id, it is another one, and the number was given to the sender since: they
  -- must not get what is the other's.
  local person = load_person(holder)
  if person and person.user_id == '' then return holder end
  return args.user_id
end

-- Put the ids of the message at the end of a person's ids, where the newest are. Return the oldest
-- ones, for which there is no room any more.
local function add_ids(person)
  for _, name in ipairs({args.parent, args.number, args.user_id}) do
    for at, known in ipairs(person.ids) do
      if known == name then
        table.remove(person.ids, at)
        break
      end
    end
    if name ~= '' then table.insert(person.ids, name) end
  end

  local forgotten = {}
  while #person.ids > MAX_IDS do table.insert(forgotten, table.remove(person.ids, 1)) end
  return forgotten
end

-- Return the sender with the ids of the message, and the ids to forget. Nothing is stored.
local function find_sender()
  local key = holder_of(args.user_id) or holder_of(args.parent) or key_by_number()
  local sender = load_person(key)
    or {v = RECORD_VERSION, key = key, number = '', user_id = '', ids = {}}
  local forgotten = add_ids(sender)

  if args.user_id ~= '' then
    -- Another id comes with another number. The old one may be given to a person who never wrote.
    if sender.user_id ~= '' and sender.user_id ~= args.user_id then sender.number = '' end
    sender.user_id = args.user_id
  end

  if args.number == '' then return without_lost_number(sender), forgotten end
  -- The newest holder of a number gets the messages to it.
  sender.number = args.number
  return sender, forgotten
end

-- Store the sender, and forget ids. `briefly`: only for as long as a person who may not talk is
-- remembered.
local function store_sender(sender, forgotten, briefly)
  for _, name in ipairs({args.parent, args.number, args.user_id}) do
    if name ~= '' then redis.call('SET', holder_key(name), sender.key) end
  end
  for _, name in ipairs(forgotten) do
    if holder_of(name) == sender.key then redis.call('DEL', holder_key(name)) end
  end

  -- A number alone may be given to another person, who is then taken for this one: it is kept no
  -- longer than what is stored under it.
  local ttl = KEEP_IDENTITY_MS
  if sender.user_id == '' then ttl = KEEP_CONVERSATION_MS end
  if briefly then ttl = math.max(KEEP_STRANGER_MS, redis.call('PTTL', person_key(sender.key))) end

  redis.call('SET', person_key(sender.key), encode_record(sender), 'PX', ttl)
  for _, name in ipairs(sender.ids) do
    if holder_of(name) == sender.key then redis.call('PEXPIRE', holder_key(name), ttl) end
  end
end
