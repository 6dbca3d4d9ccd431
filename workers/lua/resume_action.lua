-- Before a halted server goes on: an action that is open here may have been decided, and run, in what was forgotten. It is
-- not run again. ARGV: -, action. Returns whether it was open.
local pid = ARGV[2]
local state, steps = unpack(redis.call('HMGET', record(pid), 'state', 'steps'))
for step in string.gmatch(steps or '', '%S+') do  -- before their plan, which would end them as not done
  if OPEN[redis.call('HGET', record(step), 'state') or ''] then enter(step, {'unknown'}) end
end
if not OPEN[state or ''] then return 0 end
enter(pid, {'unknown'})
return 1
