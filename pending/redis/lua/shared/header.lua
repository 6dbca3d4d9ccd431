-- Every script begins with this. KEYS[1]: the prefix of the shard's keys; ARGV[1]: the conversation, or '-'.
local shard, conversation = KEYS[1], ARGV[1]

-- Return this server's time in Unix milliseconds. It is the same throughout a script.
local clock
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return clock
end
