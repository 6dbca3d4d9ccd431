-- needs: actions, conversation, keys, states
-- Claim a shown action, exactly once: its user said yes, and from now on no other yes can run it.
-- args: epoch and token (none without a lease), action_id, decided_by_event (the id of the deciding event), kind ('text'
-- or 'tap'), mac, seq (number of the deciding turn).
-- ARGV[2]: the record that the caller verified.
-- Returns {status, state}: `ClaimStatus` in Python, and the state of the action, '' when there is none.
local has_lease, action_id, event = args.epoch, args.action_id, args.decided_by_event
if has_lease and not holds_lease() then return {'lost', ''} end

local key = action_key(action_id)
local state, decided_by_event, record, mac, expires_at, last_seen_seq, plan, ttl_ms = unpack(redis.call('HMGET', key,
  'state', 'decided_by_event', 'record', 'mac', 'expires_at', 'last_seen_seq', 'plan', 'ttl_ms'))
local is_mine = decided_by_event == event
if not state then return {'gone', ''} end
if (state == 'claimed' or state == 'started') and is_mine then return {'mine', state} end
if state == 'expired' and is_mine then return {'expired', state} end
if state ~= 'shown' and is_mine then return {'moved', state} end  -- it ended since this worker read it
if state ~= 'shown' then return {'other', state} end
if record ~= ARGV[2] or mac ~= args.mac then return {'tampered', state} end

local function take()
  redis.call('HSET', key, 'state', 'claimed', 'decided_by_event', event, 'started_at', now())
  entered(action_id, {'claimed'}, event, mac)
end

-- The user agreed to the plan, whose window was checked: its steps run only while the plan runs.
if plan then
  local plan_state, plan_event = unpack(redis.call('HMGET', action_key(plan), 'state', 'decided_by_event'))
  if plan_state ~= 'started' or plan_event ~= event then return {'other', state} end
  take()
  redis.call('HSET', action_key(plan), 'started_at', now())  -- the plan is still being worked on
  return {'mine', 'claimed'}
end

local decided_at = now()
if has_lease then
  local seq, received_at = string.match(redis.call('LINDEX', inbox, 0) or '', '^(%d+) (%d+) ')
  if tonumber(seq) ~= args.seq then return {'moved', state} end
  decided_at = tonumber(received_at)  -- a yes sent in time counts, however late it is worked on
end
if decided_at >= (tonumber(expires_at) or 0) then
  enter(action_id, {'expired'}, 'decided_by_event', event)
  return {'expired', 'expired'}
end

-- A yes in words that was written before the preview was delivered answers something else. A turn that waited elsewhere
-- has a later number, not a later time.
local shown_at = expires_at - (tonumber(ttl_ms) or 0)
local came_before = args.seq <= (tonumber(last_seen_seq) or 0) or decided_at < shown_at
if has_lease and args.kind == 'text' and came_before then return {'early', state} end

take()
return {'mine', 'claimed'}
