-- needs: actions, records, timers
-- Return an action whose person begins to change it. While its question is open, it stays open for FORM_MS more.
-- args: action_id.
local action_id, key = args.action_id, action_key(args.action_id)
local state, expires, ttl, notice, ending =
  unpack(redis.call('HMGET', key, 'state', 'expires_at', 'ttl_ms', 'notice', 'ending'))
local closes, later = tonumber(expires) or 0, now() + FORM_MS

-- The end of the question comes later, too. Its timer has the name that `set_notice` gives it.
local function move_end()
  local id = 'end:' .. (string.match(notice or ending or '', '^%S+') or '')
  local entry = redis.call('HGET', timer, id)
  local moved = entry and decode_record(entry)
  if not moved or moved.ends ~= action_id then return end
  moved.at = later
  set_timer(id, later, encode_record(moved))
end

if state == 'shown' and now() < closes and closes < later then
  -- With a longer time to live, too, the time at which the window opened stays the same.
  redis.call('HSET', key, 'expires_at', later, 'ttl_ms', (tonumber(ttl) or 0) + later - closes)
  move_end()
end
return action_json(action_id)
