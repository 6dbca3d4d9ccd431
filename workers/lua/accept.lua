-- Store a turn once and wake its conversation. ARGV: conversation, event, user, tapped action or '-', turn as JSON,
-- mailbox cap, milliseconds to remember the event, turns per minute and in one go of one user, conversations of this
-- shard that may have work, flags ('a': the bot must be in the conversation already, 'u': urgent, 's': stop),
-- milliseconds that it waited elsewhere, RQ job...
local seen = shard .. ':seen:' .. conversation .. ':' .. ARGV[2]
local first = redis.call('GET', seen)
if first then return {'duplicate', first} end
local function flag(letter) return string.find(ARGV[11], letter, 1, true) ~= nil end
-- A conversation in which nobody ever wrote to us has a lane too when others forward to it.
if flag('a') and redis.call('HEXISTS', lane, 'received') == 0 then return {'ignored', '0'} end

-- Whoever decides about what waits for a yes, or wants to stop, is not kept waiting and not counted, and finds places
-- that others do not.
local waiting = redis.call('LLEN', inbox)
local urgent = flag('u') or redis.call('EXISTS', live(ARGV[3])) == 1
if waiting >= ARGV[6] + (urgent and URGENT_PLACES or 0) then return {'full', '0'} end
-- A conversation has begun while a turn of it waits: its outbox may hold no more than the word that it was refused.
if waiting == 0 and crowd(tonumber(ARGV[10]), urgent and 2 or 0) then return {'crowded', '0'} end
local paced = not urgent and ARGV[12] == '0'  -- what waited elsewhere was not written all at once
if paced and too_fast(ARGV[3], tonumber(ARGV[8]), tonumber(ARGV[9])) then return {'fast', '0'} end

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
if not coming or (urgent and number('until') <= now()) then wake(13, urgent) end
return {'new', tostring(seq)}
