-- needs: conversation, keys
-- What a platform allows: how fast a channel may send, and whether the conversation's address takes messages.

-- The hash with the rate limit of the conversation's channel: `gap_ms` (between two messages), `next_free_at` (the next
-- free slot) and `silent_until` (when the platform takes messages again), both in Unix milliseconds.
local function rate_key()
  return string.match(shard, '^(.-){') .. 'rate_limit:' .. string.match(conversation, '^[^:]*')
end

-- Return the slot of a reply: the one that it has `booked` (-1 for none), or the next free one. Return nothing when no
-- rate limit is known.
local function take_slot(key, booked)
  local gap_ms, next_free_at, silent_until = unpack(redis.call('HMGET', key, 'gap_ms', 'next_free_at', 'silent_until'))
  silent_until = tonumber(silent_until or '0')
  if not gap_ms and silent_until <= now() then return end

  -- A slot that was booked before the platform asked to wait is too early.
  if booked >= silent_until and booked >= 0 then return booked end

  local earliest = math.max(now(), tonumber(next_free_at or '0'), silent_until)
  local slot = math.ceil(earliest)
  redis.call('HSET', key, 'next_free_at', earliest + tonumber(gap_ms or SPREAD_MS))
  if slot > now() then redis.call('PEXPIRE', key, slot - now() + KEEP_RATE_MS) end
  return slot
end

-- Return in how many milliseconds a reply may be sent, -1 when no rate limit is known, -2 when the channel is on
-- another node. Each reply gets one slot, once.
local function book_slot(number)
  if channel_is_elsewhere then return -2 end
  local booked = tonumber(string.match(redis.call('HGET', conversation_key, 'slot') or '', '^' .. number .. ':(%d+)$') or '-1')
  local slot = take_slot(rate_key(), booked)
  if not slot then return -1 end
  if slot ~= booked then redis.call('HSET', conversation_key, 'slot', string.format('%s:%d', number, slot)) end
  return math.max(0, slot - now())
end

-- Stop the whole channel until `later`. Return until when it is stopped: an earlier request may last longer.
local function silence(key, later)
  local silent_until, next_free_at, gap_ms = unpack(redis.call('HMGET', key, 'silent_until', 'next_free_at', 'gap_ms'))
  later = math.max(later, tonumber(silent_until or '0'))

  -- The reply that met the limit is the first one after the wait.
  local second_slot = math.max(later, tonumber(next_free_at or '0')) + tonumber(gap_ms or SPREAD_MS)
  redis.call('HSET', key, 'silent_until', later, 'next_free_at', second_slot)
  redis.call('PEXPIRE', key, later - now() + KEEP_RATE_MS)
  return later
end

-- Stop the whole channel until `later`. On a cluster the caller of the script does so.
local function silence_channel(later)
  return channel_is_elsewhere and later or silence(rate_key(), later)
end

-- Return the milliseconds since a user wrote here, -1 when that is unknown, -2 when no user ever wrote.
local function ms_since_last_turn()
  local user_message_at = redis.call('HGET', conversation_key, 'user_message_at')
  if user_message_at then return math.max(0, now() - user_message_at) end
  return conversation_number('last_turn') == 0 and -2 or -1
end

-- Return why the address takes no messages, '' when it does. A new turn ends that. Where no user ever wrote, no turn
-- may ever come, so there it holds for the one reply only, unless its user opted out.
local function closed_reason()
  local received, reason = string.match(redis.call('HGET', conversation_key, 'closed_address') or '', '^(%d+) (.*)$')
  if not received or tonumber(received) ~= conversation_number('last_turn') then return '' end
  return (received ~= '0' or has_opted_out()) and reason or ''
end

-- Note that the address takes no messages until a user writes. A message that waits is answered first.
local function close_address(reason, opted_out)
  if has_message() then return end
  redis.call('HSET', conversation_key, 'closed_address', conversation_number('last_turn') .. ' ' .. reason)
  if opted_out then redis.call('HSET', conversation_key, 'opted_out', conversation_number('last_turn')) end
end
