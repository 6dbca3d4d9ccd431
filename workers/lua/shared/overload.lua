-- needs: keys
-- The limit on how many conversations may have work at once.

-- Return whether so many conversations of this shard have work, or a worker, that this one cannot
-- begin. `limit`: how many may have work. Above it there is reserved room, in shares of a tenth of
-- the limit and RESERVED_CONVERSATIONS more. `shares`: how many of them the caller may use: none
-- for a usual turn, one for a notice of refusal, two for an urgent turn.
local function is_overloaded(limit, shares)
  local most = limit + shares * (limit / 10 + RESERVED_CONVERSATIONS)

  -- A conversation that is due later than soon waits for a platform or a timer.
  local soon = now() + SOON_MS
  local count = redis.call('ZCOUNT', due, '-inf', soon)
  if count < most then return false end

  -- The conversation itself may be among those that were counted.
  local own = redis.call('ZSCORE', due, conversation)
  if own and tonumber(own) <= soon then count = count - 1 end
  return count >= most
end
