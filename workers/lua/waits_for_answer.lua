-- needs: actions, timers
-- Check whether a question of any user of this conversation waits for a yes or no.
-- Offered choices wait for nothing.
-- args: choice (the kind of an offer).
for _, what in ipairs(redis.call('HVALS', timer)) do
  local asked = cjson.decode(what).ends
  local key = action_key(asked or '')
  local state, expires, kind = unpack(redis.call('HMGET', key, 'state', 'expires_at', 'kind'))
  if state == 'shown' and kind ~= args.choice and now() < (tonumber(expires) or 0) then return 1 end
end
return 0
