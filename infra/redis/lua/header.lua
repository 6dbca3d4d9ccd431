-- Every script begins with this. KEYS[1]: the prefix of the shard's keys; KEYS[2]: its write counter.
-- ARGV[1]: the named arguments as JSON. Among them are `conversation`, '-' for a script about the
-- whole shard, and `watermark`, the highest write counter of the shard that the caller has seen.
local shard, args = KEYS[1], cjson.decode(ARGV[1])
local conversation = args.conversation

-- Return this server's time in Unix milliseconds. It is the same throughout a script.
local clock
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return clock
end
