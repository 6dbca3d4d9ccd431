-- Store a turn once and wake its conversation. ARGV: conversation, event, user, tapped action or '-', turn as JSON,
-- mailbox cap, milliseconds to remember the event, turns per minute and in one go of one user, conversations of this
-- shard that may have work, flags ('a': the bot must be in the conversation already, 's': stop, 't': a tap, 'q': a tap or
-- /status),
-- milliseconds that it waited elsewhere, RQ job...
local seen = shard .. ':seen:' .. conversation .. ':' .. ARGV[2]
local first = redis.call('GET', seen)
if first then return {'duplicate', first} end
local function flag(letter) return string.find(ARGV[11], letter, 1, true) ~= nil end
-- A conversation in which nobody ever wrote to us has a lane too when others forward to it.
if flag('a') and redis.call('HEXISTS', lane, 'received') == 0 then return {'ignored', '0'} end

-- Urgent is whoever was asked, unless they tap what somebody else was asked, and whoever stops a turn of their own. They are
-- not kept waiting and not counted, and find places that others do not: each person a few, so that nobody takes them all.
local waiting, cap = redis.call('LLEN', inbox), tonumber(ARGV[6])
local asked = ARGV[4] ~= '-' and redis.call('HGET', record(ARGV[4]), 'user')
local is_own = not asked or asked == ARGV[3]
local stops = flag('s') and has_turn(ARGV[3]) and number(stop_of(ARGV[3])) == 0
local urgent = stops or (is_own and (asked or redis.call('EXISTS', live(ARGV[3])) == 1))
local function is_full()
  if waiting < cap then return false end
  if not urgent or waiting >= cap + URGENT_PLACES then return true end
  local own = 0
  for _, turn in ipairs(redis.call('LRANGE', inbox, cap, -1)) do
    if user_of(turn) == ARGV[3] then own = own + 1 end
  end
  return own >= URGENT_EACH
end
if is_full() then return {'full', '0'} end
-- A conversation has begun while a turn of it waits: its outbox may hold no more than the word that it was refused.
if waiting == 0 and crowd(tonumber(ARGV[10]), (urgent or flag('s')) and 2 or 0) then return {'crowded', '0'} end
local quick = flag('q') and is_own  -- these are counted by themselves
local counted = quick and ARGV[3] .. ':quick' or not urgent and ARGV[3]
if ARGV[12] == '0' and counted and too_fast(counted, tonumber(ARGV[8]), tonumber(ARGV[9])) then return {'fast', '0'} end

local coming, stopped = awaited(), flag('s') and has_turn(ARGV[3])
local seq = next_number('received')
redis.call('RPUSH', inbox, table.concat({seq, now() - ARGV[12], ARGV[3], ARGV[4], ARGV[5]}, ' '))
redis.call('SET', seen, seq, 'PX', ARGV[7])
redis.call('HSET', lane, 'heard', math.max(number('heard'), now() - ARGV[12]))
keep()
if stopped then
  redis.call('HSET', lane, stop_of(ARGV[3]), seq)
  redis.call('PUBLISH', shard .. ':stop', conversation)
end
local hurried = urgent or flag('s') or (flag('t') and is_own)
if not coming or (hurried and number('until') <= now()) then wake(13, hurried) end
return {'new', tostring(seq)}
