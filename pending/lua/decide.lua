-- Decide, without a lane, on what a scope waits for: all guards, then the step, in one round trip.
-- ARGV: conversation, user, intent, deciding act, expected kind, action and digest ('' for any), milliseconds that an
-- 'ignore' leaves, the code typed with a yes. A yes is claimed and started at once, the act being its attempt too; the
-- caller verifies what is returned before it runs it.
local pid, intent, act = redis.call('GET', live(ARGV[2])), ARGV[3], ARGV[4]
if not pid then return {'gone', {}} end
local fields = redis.call('HMGET', record(pid), 'rec', 'mac', 'state', 'expires', 'by', 'attempt', 'told', 'result',
  'seen', 'begun', 'kind', 'digest', 'code')
local state, expires, kind, digest, code = fields[3], tonumber(fields[4] or '0'), fields[11], fields[12], fields[13] or ''
local again, changed = fields[5] == act, ARGV[7] ~= '' and ARGV[7] ~= digest

-- The verdict, with the record as it is after it.
local function say_of(verdict)
  fields[11], fields[12], fields[13] = nil, nil, nil
  return {verdict, {pid, now(), fields}}
end

local function end_as(end_state, verdict)
  if not again then enter(pid, {end_state}, 'by', act) end
  fields[3], fields[5] = end_state, act
  return say_of(verdict)
end

-- `again`: Redis did it already, and the answer was lost.
if again and state == 'started' and fields[6] == act then return say_of('mine') end
if again and state == 'expired' then return end_as('expired', 'expired') end
if again and state == 'cancelled' then return end_as('cancelled', changed and 'changed' or 'cancelled') end
if state == 'armed' and intent == 'confirm' then return say_of('early') end
if (state == 'claimed' or state == 'started') and now() - tonumber(fields[10]) > STALE then
  redis.call('HSET', record(pid), 'by', act)
  fields[5] = act
  return say_of('stale')  -- whoever began it died: this decision's caller ends it
end
if state ~= 'shown' and state ~= 'armed' then return {'gone', {}} end
if state == 'shown' and now() >= expires then return end_as('expired', 'expired') end
local another = (ARGV[5] ~= '' and ARGV[5] ~= kind) or (ARGV[6] ~= '' and ARGV[6] ~= pid)
if another or (intent == 'confirm' and ARGV[9] ~= code) then return say_of('mismatch') end
if changed then return end_as('cancelled', 'changed') end
if intent == 'cancel' then return end_as('cancelled', 'cancelled') end
if intent == 'ignore' then
  local sooner = now() + ARGV[8]
  if state == 'shown' and sooner < expires then  -- never later
    redis.call('HSET', record(pid), 'expires', sooner)
    fields[4] = sooner
  end
  return say_of('ignored')
end
enter(pid, {'claimed', 'started'}, 'by', act, 'attempt', act, 'tries', 1, 'begun', now())
fields[3], fields[5], fields[6] = 'started', act, act
return say_of('mine')
