-- needs: channel, conversation, deliveries, keys
-- Note that a platform says an address takes messages again, or why it takes none.
-- args: reason ('' when it takes messages), late_ms (a message from the user within this time
-- outweighs the report; 0 for a report about the last message), opted_out (the user wants no
-- messages), number (of the reply that the report is about, 0 when unknown).

local function wrote_lately()
  return now() - conversation_number('user_message_at') < args.late_ms
end

-- Return whether the user wrote after the reply was sent.
local function wrote_since_reply()
  local state, at = string.match(redis.call('HGET', deliveries, args.number) or '', '^(%S+) (%d+)')
  if state == 'failed' then return true end  -- the report is repeated: what it says is stored
  if state then return conversation_number('user_message_at') >= tonumber(at) end
  -- The report is faster than the worker that sent the reply, or the reply is long forgotten.
  local first = string.match(redis.call('LINDEX', outbox, 0) or '', '^%d+')
  return first ~= tostring(args.number) and wrote_lately()
end

local function is_outdated()
  if args.late_ms == 0 then return false end
  if has_message() then return true end
  if args.opted_out and args.number > 0 then return wrote_since_reply() end
  return wrote_lately()
end

if is_outdated() then return 'ok' end
if args.reason == '' then
  redis.call('HDEL', conversation_key, 'closed_address', 'opted_out', 'barred_until')
elseif redis.call('EXISTS', conversation_key) == 1 then
  close_address(args.reason, args.opted_out)
  keep_conversation()
end
return 'ok'
