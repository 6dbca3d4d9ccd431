-- needs: conversation, inbox, keys
-- What a platform allows: how fast a channel may send, and whether the conversation's address takes
-- messages.
--
-- A channel is one account of the bot on a platform. Where its messages have a minimal gap, each
-- reply gets a slot: the time at which it may be sent. On a cluster the rate limit of a channel is
-- on a node of its own (`in_cluster`); then the caller of the script asks there.

-- A hash: the rate limit of the conversation's channel. `gap_ms`: between two messages;
-- `next_free_at`: the next free slot; `silent_until`: when the platform takes messages again, the
-- latter two in Unix milliseconds.
local function rate_key()
  local prefix = string.match(shard, '^(.-){')
  local channel = string.match(conversation, '^[^:]*')
  return prefix .. 'rate_limit:' .. channel
end

-- Store how fast a channel may send. `key`: the rate limit; `gap_ms`: between two messages, 0 if the
-- channel has no limit. Then the slots of an earlier limit are free too.
local function store_gap(key, gap_ms)
  if gap_ms > 0 then
    redis.call('HSET', key, 'gap_ms', gap_ms)
    redis.call('PEXPIRE', key, math.max(KEEP_RATE_MS, redis.call('PTTL', key)))
  elseif redis.call('HDEL', key, 'gap_ms') == 1 then
    redis.call('HDEL', key, 'next_free_at')
  end
end

-- Return the slot of a reply, in Unix milliseconds: the one that it has `booked` (nil for none), or
-- the next free one, which is taken. Return nil if no rate limit is known. `key`: the rate limit.
local function take_slot(key, booked)
  local gap_ms, next_free_at, silent_until =
    unpack(redis.call('HMGET', key, 'gap_ms', 'next_free_at', 'silent_until'))
  silent_until = tonumber(silent_until or '0')
  if not gap_ms and silent_until <= now() then return nil end

  -- A slot that was booked before the platform asked to wait is too early.
  if booked and booked >= silent_until then return booked end

  local earliest = math.max(now(), tonumber(next_free_at or '0'), silent_until)
  local slot = math.ceil(earliest)
  redis.call('HSET', key, 'next_free_at', earliest + tonumber(gap_ms or SPREAD_MS))
  if slot > now() then redis.call('PEXPIRE', key, slot - now() + KEEP_RATE_MS) end
  return slot
end

-- Return in how many milliseconds a reply may be sent. Each reply gets one slot, once; the
-- conversation's field 'slot' holds it as "number:slot". Return nil if no rate limit is known here.
local function book_slot(number)
  if in_cluster then return nil end

  local stored = redis.call('HGET', conversation_key, 'slot') or ''
  local booked = tonumber(string.match(stored, '^' .. number .. ':(%d+)$') or '')
  local slot = take_slot(rate_key(), booked)
  if not slot then return nil end

  if slot ~= booked then
    redis.call('HSET', conversation_key, 'slot', string.format('%s:%d', number, slot))
  end
  return math.max(0, slot - now())
end

-- Stop the whole channel until `later`, in Unix milliseconds. Return until when it is stopped: an
-- earlier request of the platform may last longer. `key`: the rate limit.
local function silence(key, later)
  local silent_until, next_free_at, gap_ms =
    unpack(redis.call('HMGET', key, 'silent_until', 'next_free_at', 'gap_ms'))
  later = math.max(later, tonumber(silent_until or '0'))

  -- The reply that met the limit is the first one after the wait, so the next free slot is the
  -- second.
  local second_slot = math.max(later, tonumber(next_free_at or '0')) + tonumber(gap_ms or SPREAD_MS)
  redis.call('HSET', key, 'silent_until', later, 'next_free_at', second_slot)
  redis.call('PEXPIRE', key, later - now() + KEEP_RATE_MS)
  return later
end

-- Stop the conversation's whole channel until `later`, where its rate limit is here. Return until
-- when it is stopped.
local function silence_channel(later)
  if in_cluster then return later end
  return silence(rate_key(), later)
end

-- Return how many milliseconds ago a user wrote here last, 'unknown' if that is not known, and
-- 'never' if no user ever wrote.
local function ms_since_last_turn()
  local user_message_at = redis.call('HGET', conversation_key, 'user_message_at')
  if user_message_at then return math.max(0, now() - user_message_at) end
  if conversation_number('last_turn') == 0 then return 'never' end
  return 'unknown'
end

-- Return why the address takes no messages, '' if it takes them. A new turn ends that. Where no
-- user ever wrote, no turn may ever come, so there it holds for the one reply only, unless the user
-- opted out. The conversation's field 'closed_address' is the text "last_turn reason".
local function closed_reason()
  local stored = redis.call('HGET', conversation_key, 'closed_address') or ''
  local last_turn, reason = string.match(stored, '^(%d+) (.*)$')
  if not last_turn or tonumber(last_turn) ~= conversation_number('last_turn') then return '' end
  if last_turn == '0' and not has_opted_out() then return '' end
  return reason
end

-- Record that the address takes no messages until a user writes. A message that waits is answered
-- first. `opted_out`: the user asked for that.
local function close_address(reason, opted_out)
  if has_message() then return end
  local last_turn = conversation_number('last_turn')
  redis.call('HSET', conversation_key, 'closed_address', last_turn .. ' ' .. reason)
  if opted_out then redis.call('HSET', conversation_key, 'opted_out', last_turn) end
end
