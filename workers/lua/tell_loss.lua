-- needs: actions, conversation, keys, outbox, queue
-- Tell a user what this server has forgotten, unless the user was told before.
--
-- args:
--   user              the id of the scope
--   marks             ids of what the user is told: of events and actions
--   user_message_at   when the user last wrote (Unix milliseconds), 0 if unknown
--   until_ms          turns up to this time (Unix milliseconds) are explained, too; absent unless
--                     the notice is about turns
--   action_id         of an action that ended; absent for other notices
--   state             of that action, as its worker knows it
--   outcome           what the user is told of that action
--   question          the id of a closed question; absent for other notices
--   ARGV[2]           the record of the notice; from ARGV[3]: the hash of the RQ job
-- returns: 'sent', or '' if nothing was forgotten or the user was told before.
local told_key = loss_key()

-- A turn of this user was answered since: if it was a yes or no, with the end of the question.
if args.question then
  local open_action_id = redis.call('GET', open_action_key(args.user))
  if open_action_id ~= args.question then return '' end
end

if args.action_id then
  -- An action whose end is stored was not forgotten. After a loss it is stored as unknown, although
  -- its worker knows better.
  local known = redis.call('HGET', action_key(args.action_id), 'state')
  local has_ended = args.state == 'done' or args.state == 'failed'
  if known and not (known == 'unknown' and has_ended) then return '' end
  -- A second yes gets the same text.
  if known then redis.call('HSET', action_key(args.action_id), 'outcome_text', args.outcome) end
end

local is_new = false
for _, mark in ipairs(args.marks) do
  if redis.call('HSETNX', told_key, mark, 1) == 1 then is_new = true end
end
redis.call('PEXPIRE', told_key, KEEP_LOSS_MS)
if not is_new then return '' end

if args.until_ms then
  local field = 'until:' .. args.user
  local explained_until = tonumber(redis.call('HGET', told_key, field) or '0')
  local latest = math.max(explained_until, args.until_ms)
  redis.call('HSET', told_key, field, string.format('%d', latest))
end

-- Some platforms accept a message only for a day after the user wrote.
if args.user_message_at > 0 then
  local latest = math.max(conversation_number('user_message_at'), args.user_message_at)
  redis.call('HSET', conversation_key, 'user_message_at', string.format('%d', latest))
end

local was_expected = is_worker_expected()
append_reply(ARGV[2])
keep_conversation()
if not was_expected then wake_worker(3) end
return 'sent'
