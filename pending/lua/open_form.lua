-- needs: actions, records, timers
-- Load an action whose person opens the form in which a call can be changed. If its question is open,
-- it stays open for at least FORM_MS more.
--
-- args:
--   action_id
-- returns: the action as JSON, '' for an unknown one.
local action_id, key = args.action_id, action_key(args.action_id)
local state, expires_at, ttl_ms, notice, ending =
  unpack(redis.call('HMGET', key, 'state', 'expires_at', 'ttl_ms', 'notice', 'ending'))
local closes, later = tonumber(expires_at) or 0, now() + FORM_MS

-- Move the timer that ends the question. Its name is the one that `set_question_timer` gives it.
local function move_end()
  local user = string.match(notice or ending or '', '^%S+') or ''
  local id = 'end:' .. user
  local entry = redis.call('HGET', timer, id)
  if not entry then return end

  local moved = decode_record(entry)
  if moved.ends ~= action_id then return end
  moved.at = later
  set_timer(id, later, encode_record(moved))
end

if state == 'shown' and now() < closes and closes < later then
  -- The window is longer by as much, so the time at which it opened stays the same.
  redis.call('HSET', key, 'expires_at', later, 'ttl_ms', (tonumber(ttl_ms) or 0) + later - closes)
  move_end()
end
return action_json(action_id)
