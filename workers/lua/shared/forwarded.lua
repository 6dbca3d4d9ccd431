-- Entries that another conversation has forwarded to this one. Each entry is taken once: a repeated
-- call changes nothing and returns the first answer.
--
-- args:
--   delivery   the id of the entry in the outbox of the other conversation

local forwarded_key = shard .. ':forwarded:' .. args.delivery

-- Return the answer to an earlier call with this delivery, nil for the first call.
local function earlier_answer()
  return redis.call('GET', forwarded_key) or nil
end

-- Remember the answer for repeated calls, and return it.
local function remember_answer(answer)
  redis.call('SET', forwarded_key, answer, 'PX', KEEP_DELIVERY_MS)
  return answer
end
