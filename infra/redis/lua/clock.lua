-- Return this server's time in Unix milliseconds. It is the same throughout a script.
local clock
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return clock
end
