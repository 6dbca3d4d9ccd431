-- needs: keys
-- What another conversation has sent here. Each thing is taken once.
--
-- args:
--   delivery   the id that it had in the outbox of the other conversation

local forwarded_key = shard .. ':forwarded:' .. args.delivery

-- Return what the first call with this delivery answered, nil if this is the first one.
local function earlier_answer()
  return redis.call('GET', forwarded_key) or nil
end

-- Remember the answer, and return it.
local function taken(answer)
  redis.call('SET', forwarded_key, answer, 'PX', KEEP_DELIVERY_MS)
  return answer
end
