-- Decide, without a lane, on what a scope waits for: all guards, then the step, in one round trip.
-- ARGV: conversation, user, intent, deciding act, expected kind, action and digest ('' for any), milliseconds that an
-- 'ignore' leaves, the code typed with a yes. A yes is claimed and started at once, the act being its attempt too; the
-- caller verifies what is returned before it runs it.
local intent, act = ARGV[3], ARGV[4]
local decided = shard .. ':decided:' .. act

-- The answer is remembered for as long as it may be asked for again: by then another action may wait here.
local function say_of(verdict, pid)
  redis.call('SET', decided, verdict .. ' ' .. (pid or ''), 'PX', ASKED_AGAIN)
  return {verdict, pid and snapshot(pid) or {}}
end

local before = redis.call('GET', decided)
if before then
  local verdict, pid = string.match(before, '^(%S+) (.*)$')
  return {verdict, pid ~= '' and snapshot(pid) or {}}
end
local pid = redis.call('GET', live(ARGV[2]))
if not pid then return say_of('gone') end
local key = record(pid)
local state, expires, begun, kind, digest, code =
  unpack(redis.call('HMGET', key, 'state', 'expires', 'begun', 'kind', 'digest', 'code'))

local function end_as(end_state, verdict)
  enter(pid, {end_state}, 'by', act)
  return say_of(verdict, pid)
end

local another = (ARGV[5] ~= '' and ARGV[5] ~= kind) or (ARGV[6] ~= '' and ARGV[6] ~= pid)
local changed = ARGV[7] ~= '' and ARGV[7] ~= digest
local uncoded = intent == 'confirm' and ARGV[9] ~= (code or '')
if state == 'claimed' or state == 'started' then
  if now() - (tonumber(begun) or 0) <= STALE then return say_of('gone') end
  if another or changed or uncoded then return say_of('mismatch', pid) end
  return say_of('stale', pid)  -- whoever began it died: this decision's caller owns up to it
end
if state ~= 'shown' and state ~= 'armed' then return say_of('gone') end
if state == 'shown' and now() >= (tonumber(expires) or 0) then return end_as('expired', 'expired') end
if another or uncoded then return say_of('mismatch', pid) end
if state == 'armed' and intent == 'confirm' then return say_of('early', pid) end
if changed then return end_as('cancelled', 'changed') end
if intent == 'cancel' then return end_as('cancelled', 'cancelled') end
if intent == 'ignore' then
  local sooner = now() + ARGV[8]
  if state == 'shown' and sooner < tonumber(expires) then redis.call('HSET', key, 'expires', sooner) end  -- never later
  return say_of('ignored', pid)
end
enter(pid, {'claimed', 'started'}, 'by', act, 'attempt', act, 'tries', 1, 'begun', now())
return say_of('mine', pid)
