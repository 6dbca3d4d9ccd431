-- needs: actions, states
-- Before a halted server resumes: close an open action. Its decision may be among the lost writes, so it never runs
-- again.
-- args: pid.
-- Returns 1 if it was open, else 0.
local pid = args.pid
local state, steps = unpack(redis.call('HMGET', action_key(pid), 'state', 'steps'))
for step in string.gmatch(steps or '', '%S+') do  -- before their plan: ending the plan would mark them as not done
  if OPEN_STATES[redis.call('HGET', action_key(step), 'state') or ''] then enter(step, {'unknown'}) end
end
if not OPEN_STATES[state or ''] then return 0 end
enter(pid, {'unknown'})
return 1
