-- needs: channel, conversation, deliveries, inbox, keys, outbox
-- Record that, as a platform says, an address takes messages again, or why it takes none.
--
-- A report may be older than a message of the user, who proves by writing that the address takes
-- messages. Such a report is ignored.
--
-- args:
--   reason      why it takes none, '' if it takes messages
--   late_ms     a message of the user within this time outweighs the report; 0 for a report about
--               the last message
--   opted_out   true if the user wants no messages
--   number      of the reply that the report is about, 0 if unknown
-- returns: 'ok'.

local function wrote_lately()
  return now() - conversation_number('user_message_at') < args.late_ms
end

-- Return whether the user wrote after the reply was sent.
local function wrote_since_reply()
  local delivery = load_delivery(args.number)
  if delivery then
    -- The report is repeated: what it says is stored.
    if delivery.state == 'failed' then return true end
    return conversation_number('user_message_at') >= delivery.at
  end

  -- The report is faster than the worker that sent the reply, or the reply is long forgotten.
  local is_first = first_reply_number() == tostring(args.number)
  return not is_first and wrote_lately()
end

local function is_outdated()
  if args.late_ms == 0 then return false end
  if has_message() then return true end
  if args.opted_out and args.number > 0 then return wrote_since_reply() end
  return wrote_lately()
end

if is_outdated() then return 'ok' end

-- An address that never had a conversation stays unknown.
if args.reason == '' then
  redis.call('HDEL', conversation_key, 'closed_address', 'opted_out', 'barred_until')
elseif redis.call('EXISTS', conversation_key) == 1 then
  close_address(args.reason, args.opted_out)
  keep_conversation()
end
return 'ok'
