-- needs: actions, records, timers
-- Load an action whose person opens the form in which a call can be changed. If its question is
-- open, it stays open for at least FORM_MS more.
--
-- args:
--   action_id
-- returns: the action as JSON, '' for an unknown one.
local action_id = args.action_id
local key = action_key(action_id)
local state, user, expires_at, ttl_ms =
  unpack(redis.call('HMGET', key, 'state', 'user', 'expires_at', 'ttl_ms'))
local closes_at = tonumber(expires_at) or 0
local later = now() + FORM_MS

-- Move the timer that ends the question. Its id is the one that `open_window` gives it.
local function move_end()
  local id = 'end:' .. user
  local entry = redis.call('HGET', timer, id)
  if not entry then return end

  local moved = decode_record(entry)
  if moved.ends ~= action_id then return end
  moved.at = later
  set_timer(id, later, encode_record(moved))
end

if state == 'shown' and now() < closes_at and closes_at < later then
  -- The window is longer by as much, so the time at which it opened stays the same.
  local longer_ttl_ms = (tonumber(ttl_ms) or 0) + later - closes_at
  redis.call('HSET', key, 'expires_at', later, 'ttl_ms', longer_ttl_ms)
  move_end()
end
return action_json(action_id)
