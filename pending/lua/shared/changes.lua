-- needs: actions, keys, last_message, states
-- A change of pending actions: `move`, a transition of one action, and `arms`, new actions.

-- End an action whose worker is gone.
local function end_abandoned(pid)
  local state = redis.call('HGET', action_key(pid), 'state')
  if state == 'claimed' then enter(pid, {'superseded'}) end
  if state == 'started' then enter(pid, {'unknown'}) end
end

-- Return whether another action occupies the scope of this one. `move` ends the action that it names.
local function is_scope_occupied(arm, move)
  local other = arm.live and redis.call('GET', live_key(arm.user))
  if not other or other == arm.pid or (move and move.pid == other) then return false end
  local state, expires, begun = unpack(redis.call('HMGET', action_key(other), 'state', 'expires', 'begun'))
  if state == 'shown' and now() >= (tonumber(expires) or 0) then
    enter(other, {'expired'})
    return false
  end
  if (state == 'claimed' or state == 'started') and now() - (tonumber(begun) or 0) > STALE_MS then
    end_abandoned(other)
    return false
  end
  return OPEN_STATES[state or ''] or false
end

-- Return why a change is impossible: 'state' or 'exists'. Return nil when it is possible.
local function refusal_of(change)
  local move = change.move
  if move then
    local state, by, late = unpack(redis.call('HMGET', action_key(move.pid), 'state', 'by', 'late'))
    if late then  -- the truth about a step came in after this change was made
      redis.call('HDEL', action_key(move.pid), 'late')
      return 'state'
    end
    local possible = state == move.to and by == move.by  -- a repeated call: the answer was lost
    for _, from in ipairs(move.from) do possible = possible or state == from end
    -- An action that expired meanwhile had no effect, so it may be called cancelled or expired.
    possible = possible or (state == 'expired' and (move.to == 'cancelled' or move.to == 'expired'))
    if not possible then return 'state' end
  end
  for _, arm in ipairs(change.arms) do
    if is_scope_occupied(arm, move) then return 'exists' end
  end
end

-- Store an action: armed until its preview is delivered, or shown `at_once` where nothing is delivered. Return when its
-- window closes.
local function store_action(arm, at_once)
  local key = action_key(arm.pid)
  if redis.call('EXISTS', key) == 1 then return redis.call('HGET', key, 'expires') end  -- a repeated call
  local state, expires, events = 'armed', 0, {'armed'}
  if at_once then state, expires, events = 'shown', now() + arm.ttl, {'armed', 'shown'} end
  redis.call('HSET', key, 'rec', arm.rec, 'mac', arm.mac, 'kind', arm.kind, 'digest', arm.digest, 'ttl', arm.ttl,
    'user', arm.user, 'state', state, 'expires', expires, 'seen', 0, unpack(arm.more))
  redis.call('PEXPIRE', key, KEEP_ACTION_MS)
  append_audit(arm.pid, events, '', arm.mac)
  if arm.live then redis.call('SET', live_key(arm.user), arm.pid, 'PX', KEEP_ACTION_MS) end
  if at_once and arm.live and redis.call('EXISTS', lane) == 1 then
    follow_question()
    set_last_question(arm.pid, '0')
  end
  return expires
end

local function apply_change(change, at_once)
  local move = change.move
  local state = move and redis.call('HGET', action_key(move.pid), 'state')
  if move and state ~= move.to and state ~= 'expired' then
    local fields = move.by and {'by', move.by} or {}
    if move.told ~= '' then fields[#fields + 1], fields[#fields + 2] = 'told', move.told end
    enter(move.pid, {move.to}, unpack(fields))
  elseif move and move.told ~= '' then
    redis.call('HSET', action_key(move.pid), 'told', move.told)
  end
  if move and move.unclear then
    local earlier = redis.call('HGET', action_key(move.pid), 'unclear')
    redis.call('HSET', action_key(move.pid), 'unclear', earlier and earlier .. ' ' .. move.unclear or move.unclear)
  end
  for _, arm in ipairs(change.arms) do store_action(arm, at_once) end
end
