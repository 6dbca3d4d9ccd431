-- needs: actions, states
-- Before a halted server resumes: close an open action. Its decision may be among the lost writes,
-- so the action never runs again. Users whose question is still open are told.
--
-- args:
--   action_id
-- returns: 1 if the action was open, else 0.
local action_id = args.action_id
local state, steps, address, expires_at =
  unpack(redis.call('HMGET', action_key(action_id), 'state', 'steps', 'address', 'expires_at'))

-- The steps end before their plan: the end of the plan would mark them as not done.
for step in string.gmatch(steps or '', '%S+') do
  local step_state = redis.call('HGET', action_key(step), 'state') or ''
  if OPEN_STATES[step_state] then enter(step, {'unknown'}) end
end
if not OPEN_STATES[state or ''] then return 0 end
enter(action_id, {'unknown'})

local can_be_answered = state == 'armed' or (state == 'shown' and tonumber(expires_at) > now())
if address and can_be_answered then
  local closed_questions = shard .. ':closed_questions'
  redis.call('RPUSH', closed_questions, action_id)
  redis.call('PEXPIRE', closed_questions, KEEP_LOSS_MS)
end
return 1
