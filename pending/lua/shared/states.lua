-- needs: actions
-- Entering a state of a pending action. Each state is an entry of the audit log.

-- Append entries to the audit log, in the same step as what they record. Each names the hash of the one before. The
-- record is not in the entry: `body` is its MAC, which proves the record while it is stored and tells nothing later.
local function append_audit(action_id, events, by, mac)
  local log, entries = shard .. ':audit', {}
  local n, head = string.match(redis.call('GET', log .. ':head') or '', '^(%d+) (%x+)$')
  n, head = tonumber(n or redis.call('GET', shard .. ':floor') or '0'), head or NO_HEAD
  for at, event in ipairs(events) do
    n = n + 1
    entries[at] = string.format('{"n":%d,"at":%d,"pid":"%s","event":"%s","by":%s,"body":"%s","prev":"%s"}',
      n, now(), action_id, event, cjson.encode(by), mac, head)
    head = redis.sha1hex(entries[at])
  end
  redis.call('SET', log .. ':head', string.format('%d %s', n, head))
  if redis.call('RPUSH', log, unpack(entries)) > MAX_AUDIT_ENTRIES then redis.call('LPOP', log, #entries) end
end

-- How an open step ends with its plan. A step that was started may have had its effect; all others have not.
local function end_of_step(step_state, plan_state)
  if step_state == 'started' then return 'unknown' end
  return (plan_state == 'expired' or plan_state == 'superseded') and plan_state or 'cancelled'
end

-- Remember an action that is started: its effect may have happened from now on.
local function note_started(action_id)
  local user = redis.call('HGET', action_key(action_id), 'user')
  if not user then return end
  redis.call('LREM', started_actions_key(user), 0, action_id)
  redis.call('LPUSH', started_actions_key(user), action_id)
  redis.call('LTRIM', started_actions_key(user), 0, MAX_RECENT - 1)
  redis.call('PEXPIRE', started_actions_key(user), KEEP_RECENT_MS)
end

-- `enter` sets these states, one after the other, and the further fields and values. `entered` does what follows from
-- them: the caller has set the fields.
local enter, entered
function entered(action_id, states, by, mac, steps)
  local state = states[#states]
  append_audit(action_id, states, by or '', mac or '')
  if state == 'started' then note_started(action_id) end
  if OPEN_STATES[state] then return end
  redis.call('PEXPIRE', action_key(action_id), KEEP_ACTION_MS)
  for step in string.gmatch(steps or '', '%S+') do
    local step_state = redis.call('HGET', action_key(step), 'state') or ''
    if OPEN_STATES[step_state] then enter(step, {end_of_step(step_state, state)}, 'decided_by_event', by or '') end
  end
end

function enter(action_id, states, ...)
  local key = action_key(action_id)
  redis.call('HSET', key, 'state', states[#states], ...)
  entered(action_id, states, unpack(redis.call('HMGET', key, 'decided_by_event', 'mac', 'steps')))
end
