-- needs: actions, states
-- Before a halted server resumes: close an open action. Its decision may be among the lost writes, so it never runs
-- again. Processes tell users whose question is still open.
-- args: pid.
-- Returns 1 if it was open, else 0.
local pid = args.pid
local state, steps, to, expires =
  unpack(redis.call('HMGET', action_key(pid), 'state', 'steps', 'to', 'expires'))
for step in string.gmatch(steps or '', '%S+') do  -- before their plan: ending the plan would mark them as not done
  if OPEN_STATES[redis.call('HGET', action_key(step), 'state') or ''] then enter(step, {'unknown'}) end
end
if not OPEN_STATES[state or ''] then return 0 end
enter(pid, {'unknown'})
if to and (state == 'armed' or (state == 'shown' and tonumber(expires) > now())) then  -- the user may still answer
  redis.call('RPUSH', shard .. ':closed', pid)
  redis.call('PEXPIRE', shard .. ':closed', KEEP_LOSS_MS)
end
return 1
