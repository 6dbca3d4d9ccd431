-- needs: actions, timers
-- Check whether a question of any user of this conversation waits for a yes or no. An offer of
-- choices asks for neither.
--
-- args:
--   choice   the kind of an offer of choices
-- returns: 1 if one waits, else 0.

-- Each open question has a timer that ends it.
for _, what in ipairs(redis.call('HVALS', timer)) do
  local action_id = cjson.decode(what).ends
  if action_id then
    local state, expires_at, kind =
      unpack(redis.call('HMGET', action_key(action_id), 'state', 'expires_at', 'kind'))
    local is_open = state == 'shown' and now() < (tonumber(expires_at) or 0)
    if is_open and kind ~= args.choice then return 1 end
  end
end
return 0
