-- needs: actions, states
-- Before a halted server resumes: close an open action. Its decision may be among the lost writes, so it never runs
-- again. Processes tell users whose question is still open.
-- args: action_id.
-- Returns 1 if it was open, else 0.
local action_id = args.action_id
local state, steps, to, expires =
  unpack(redis.call('HMGET', action_key(action_id), 'state', 'steps', 'address', 'expires_at'))
for step in string.gmatch(steps or '', '%S+') do  -- before their plan: ending the plan would mark them as not done
  if OPEN_STATES[redis.call('HGET', action_key(step), 'state') or ''] then enter(step, {'unknown'}) end
end
if not OPEN_STATES[state or ''] then return 0 end
enter(action_id, {'unknown'})
if to and (state == 'armed' or (state == 'shown' and tonumber(expires) > now())) then  -- the user may still answer
  redis.call('RPUSH', shard .. ':closed', action_id)
  redis.call('PEXPIRE', shard .. ':closed', KEEP_LOSS_MS)
end
return 1
