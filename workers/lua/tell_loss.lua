-- needs: actions, conversation, keys, outbox, queue
-- Tell a user what this server has forgotten, unless that was told before.
-- args: user, marks (ids of what is told: events and actions), user_message_at (when the user last wrote, 0 for unknown),
-- until_ms (turns up to this time are explained, too; none for a notice about turns), action_id (of an action; none for
-- other notices), state (as its worker knows it), outcome (what the user is told) and question (a closed one).
-- ARGV[2]: the outbox entry; from ARGV[3]: the hash of the RQ job.
-- Returns 'sent', or '' when nothing was forgotten or it was told before.
local told = loss_key()
-- A turn of this user was answered since: if it was a yes or no, with the end of the question.
if args.question and redis.call('GET', open_action_key(args.user)) ~= args.question then return '' end
if args.action_id then
  local known = redis.call('HGET', action_key(args.action_id), 'state')
  local ended = args.state == 'done' or args.state == 'failed'
  if known and not (known == 'unknown' and ended) then return '' end
  if known then redis.call('HSET', action_key(args.action_id), 'outcome_text', args.outcome) end  -- for a second yes
end
local is_new = false
for _, mark in ipairs(args.marks) do
  if redis.call('HSETNX', told, mark, 1) == 1 then is_new = true end
end
redis.call('PEXPIRE', told, KEEP_LOSS_MS)
if not is_new then return '' end
if args.until_ms then
  local known_until = tonumber(redis.call('HGET', told, 'until:' .. args.user) or '0')
  redis.call('HSET', told, 'until:' .. args.user, string.format('%d', math.max(known_until, args.until_ms)))
end
local coming = is_worker_expected()
if args.user_message_at > 0 then  -- some platforms accept a message only for a day after the user wrote
  redis.call('HSET', conversation_key, 'user_message_at', string.format('%d', math.max(conversation_number('user_message_at'), args.user_message_at)))
end
append_reply('-', ARGV[2])
keep_conversation()
if not coming then wake_worker(3) end
return 'sent'
