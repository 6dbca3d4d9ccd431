-- needs: actions, conversation, inbox, standing, states
-- Claim an action, exactly once: its user said yes, and from now on no other yes can run it. The
-- user was shown the action, or has given a standing yes that covers it.
--
-- args:
--   epoch, token       of the worker's lease; absent without a lease
--   action_id
--   decided_by_event   the id of the deciding event, the same if the claim is made again
--   kind               'text' or 'tap': how the user said yes
--   mac                of the record that the caller verified
--   seq                number of the deciding turn
--   decision           `DecisionRecord.to_json` in Python, stored with the claim; absent if there is none
--   user               the id of the scope
--   grants             the standing yes that the user gives: `id`, `json`; absent for none
--   use                the use of a standing yes (`StandingUse.to_dict` in Python); absent for none
--   ARGV[2]            that record
-- returns: JSON with `status` (`ClaimStatus` in Python) and `state` (of the action after the claim,
--   '' if there is no action).
local has_lease = args.epoch ~= nil
local action_id = args.action_id
local event = args.decided_by_event

local function answer(status, state)
  return cjson.encode({status = status, state = state})
end

if has_lease and not holds_lease() then return answer('lost', '') end

local key = action_key(action_id)
local state, decided_by_event, record, mac, expires_at, last_seen_seq, plan, ttl_ms =
  unpack(redis.call('HMGET', key, 'state', 'decided_by_event', 'record', 'mac', 'expires_at',
    'last_seen_seq', 'plan', 'ttl_ms'))
if not state then return answer('gone', '') end

-- This event decided before: the claim is made again, after a lost answer or by the next worker.
if decided_by_event == event then
  if state == 'claimed' or state == 'started' then return answer('mine', state) end
  if state == 'expired' then return answer('expired', state) end
  -- The action ended since this worker read it.
  if state ~= 'shown' then return answer('moved', state) end
end
local is_covered = args.use and state == 'armed'
if state ~= 'shown' and not is_covered then return answer('other', state) end
if record ~= ARGV[2] or mac ~= args.mac then return answer('tampered', state) end

local function take()
  redis.call('HSET', key, 'state', 'claimed', 'decided_by_event', event, 'started_at', now())
  if args.decision then redis.call('HSET', key, 'decision', args.decision) end
  if args.grants then store_standing(args.user, args.grants) end
  entered(action_id, {'claimed'}, event, mac)
end

-- The user agreed to the plan, whose window was checked. A step runs only while its plan runs, by
-- the same decision.
if plan then
  local plan_state, plan_event =
    unpack(redis.call('HMGET', action_key(plan), 'state', 'decided_by_event'))
  if plan_state ~= 'started' or plan_event ~= event then return answer('other', state) end
  take()
  -- The plan is still being worked on, so it does not become stale.
  redis.call('HSET', action_key(plan), 'started_at', now())
  return answer('mine', 'claimed')
end

-- The user was not asked. The use counts now, and not when its turn came in.
if args.use then
  if has_lease then
    local first = first_turn()
    if not first or first.seq ~= args.seq then return answer('moved', state) end
  end
  if not use_standing(args.user, args.use) then return answer('not_covered', state) end
  take()
  return answer('mine', 'claimed')
end

-- A yes that was sent in time counts, however late it is worked on.
local decided_at = now()
if has_lease then
  local first = first_turn()
  if not first or first.seq ~= args.seq then return answer('moved', state) end
  decided_at = first.received_at
end
if decided_at >= (tonumber(expires_at) or 0) then
  enter(action_id, {'expired'}, 'decided_by_event', event)
  return answer('expired', 'expired')
end

-- A yes in words that was written before the question was delivered answers something else. A turn
-- that waited elsewhere has a later number and not a later time, so both are compared.
local shown_at = expires_at - (tonumber(ttl_ms) or 0)
local came_before = args.seq <= (tonumber(last_seen_seq) or 0) or decided_at < shown_at
if has_lease and args.kind == 'text' and came_before then return answer('early', state) end

take()
return answer('mine', 'claimed')
