-- needs: actions, conversation, keys, states
-- Take a shown action exactly once.
-- args: epoch and token (none without a lease), action_id, by (the deciding act), kind ('text' or 'tap'), mac, seq (number of
-- the turn).
-- ARGV[2]: the record. Returns {verdict, state}.
local fenced, action_id, act = args.epoch, args.action_id, args.decided_by_event
if fenced and not holds_lease() then return {'lost', ''} end
local state, by, record, mac, expires, seen, plan, ttl =
  unpack(redis.call('HMGET', action_key(action_id), 'state', 'decided_by_event', 'record', 'mac', 'expires_at', 'last_seen_seq', 'plan', 'ttl_ms'))
if not state then return {'gone', ''} end
if (state == 'claimed' or state == 'started') and by == act then return {'mine', state} end
if state == 'expired' and by == act then return {'expired', state} end
if state ~= 'shown' and by == act then return {'moved', state} end  -- it ended since this worker read it
if state ~= 'shown' then return {'other', state} end
if record ~= ARGV[2] or mac ~= args.mac then return {'tampered', state} end

local function take()
  redis.call('HSET', action_key(action_id), 'state', 'claimed', 'decided_by_event', act, 'started_at', now())
  entered(action_id, {'claimed'}, act, mac)
end

if plan then  -- the user agreed to the plan, whose window was checked: its steps run only while the plan runs
  local running, decided = unpack(redis.call('HMGET', action_key(plan), 'state', 'decided_by_event'))
  if running ~= 'started' or decided ~= act then return {'other', state} end
  take()
  redis.call('HSET', action_key(plan), 'started_at', now())  -- the plan is still being worked on
  return {'mine', 'claimed'}
end
local at = now()
if fenced then
  local seq, received = string.match(redis.call('LINDEX', inbox, 0) or '', '^(%d+) (%d+) ')
  if tonumber(seq) ~= args.seq then return {'moved', state} end
  at = tonumber(received)  -- a yes sent in time counts, however late it is worked on
end
if at >= (tonumber(expires) or 0) then
  enter(action_id, {'expired'}, 'decided_by_event', act)
  return {'expired', 'expired'}
end
local shown_at = expires - (tonumber(ttl) or 0)  -- a turn that waited elsewhere has a later number, not a later time
if fenced and args.kind == 'text' and (args.seq <= (tonumber(seen) or 0) or at < shown_at) then
  return {'early', state}  -- it was said before the preview was delivered: it answers something else
end
take()
return {'mine', 'claimed'}
