-- needs: actions
-- List the requests that a user got about the actions of other users.
--
-- args:
--   user   the id of the scope
-- returns: a list of actions as JSON, the last one first. Requests that are no longer stored are left
--   out.
local requests = {}
for _, action_id in ipairs(redis.call('LRANGE', received_requests_key(args.user), 0, -1)) do
  local request = action_json(action_id)
  if request ~= '' then requests[#requests + 1] = request end
end
return requests
