-- needs: conversation, inbox, keys, outbox, queue
-- Store a turn once and wake its conversation.
-- ARGV: conversation, event id, user, action id of a tapped button or '-', turn as JSON, most turns that may wait
-- here, milliseconds to remember the event, turns per minute of one user, turns of one user at once, conversations
-- of this shard that may have work, flags, milliseconds that the turn waited elsewhere, RQ job... Flags: 'a' the bot
-- must be in the conversation already, 's' the turn is a stop, 't' it is a tap, 'q' it is a tap or /status.
-- Returns {outcome, number of the turn or '0'}.
local seen = shard .. ':seen:' .. conversation .. ':' .. ARGV[2]
local first = redis.call('GET', seen)
if first then return {'duplicate', first} end
local function flag(letter) return string.find(ARGV[11], letter, 1, true) ~= nil end

-- Return whether a turn of this user waits or is being worked on.
local function has_turn()
  for _, entry in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
    if user_of(entry) == ARGV[3] then return true end
  end
  return false
end

-- Count a turn against a rate limit. Return true, and count nothing, if the limit is used up. The key holds the time at
-- which the whole limit is available again.
local function is_too_fast(limited, per_minute, in_one_go)
  local key, interval = shard .. ':pace:' .. conversation .. ':' .. limited, 60000 / per_minute
  local whole_at = math.max(tonumber(redis.call('GET', key) or '0'), now()) + interval
  if whole_at - now() > interval * in_one_go then return true end
  redis.call('SET', key, string.format('%d', whole_at), 'PX', string.format('%d', whole_at - now() + 1000))
  return false
end

-- A conversation to which others only forward replies exists too, but has received no turn.
if flag('a') and redis.call('HEXISTS', lane, 'received') == 0 then return {'ignored', '0'} end

-- Urgent turns: the answer of a user who was asked something (not a tap on somebody else's question), and a stop of the
-- user's own turn. They do not count against the rate limit and may use reserved places, a few for each user.
local waiting, cap = redis.call('LLEN', inbox), tonumber(ARGV[6])
local asked = ARGV[4] ~= '-' and redis.call('HGET', action_key(ARGV[4]), 'user')
local is_own = not asked or asked == ARGV[3]
local stops = flag('s') and has_turn() and lane_number(stop_field(ARGV[3])) == 0
local urgent = stops or (is_own and (asked or redis.call('EXISTS', live_key(ARGV[3])) == 1))
local function is_full()
  if waiting < cap then return false end
  if not urgent or waiting >= cap + URGENT_PLACES then return true end
  local own = 0
  for _, turn in ipairs(redis.call('LRANGE', inbox, cap, -1)) do
    if user_of(turn) == ARGV[3] then own = own + 1 end
  end
  return own >= URGENT_PLACES_EACH
end
if is_full() then return {'full', '0'} end
-- Only a conversation without waiting turns can be refused as overloaded: its outbox may hold just the refusal notice.
if waiting == 0 and is_overloaded(tonumber(ARGV[10]), (urgent or flag('s')) and 2 or 0) then return {'overloaded', '0'} end
local quick = flag('q') and is_own  -- these have a limit of their own
local counted = quick and ARGV[3] .. ':quick' or not urgent and ARGV[3]
if ARGV[12] == '0' and counted and is_too_fast(counted, tonumber(ARGV[8]), tonumber(ARGV[9])) then return {'too_fast', '0'} end

local coming, stopped = is_worker_expected(), flag('s') and has_turn()
local seq = next_number('received')
redis.call('RPUSH', inbox, table.concat({seq, now() - ARGV[12], ARGV[3], ARGV[4], ARGV[5]}, ' '))
redis.call('SET', seen, seq, 'PX', ARGV[7])
redis.call('HSET', lane, 'heard', math.max(lane_number('heard'), now() - ARGV[12]))
keep_conversation()
if stopped then
  redis.call('HSET', lane, stop_field(ARGV[3]), seq)
  redis.call('PUBLISH', shard .. ':stop', conversation)
end
local hurried = urgent or flag('s') or (flag('t') and is_own)
if not coming or (hurried and lane_number('until') <= now()) then wake_worker(13, hurried) end
return {'new', tostring(seq)}
