-- The time of this server.
local clock_ms

-- Return the time in Unix milliseconds. It is the same throughout a script.
local function now()
  if not clock_ms then
    local time = redis.call('TIME')
    local seconds, microseconds = time[1], time[2]
    clock_ms = seconds * 1000 + math.floor(microseconds / 1000)
  end
  return clock_ms
end
