-- needs: keys
-- Turns that wait, and the limit on conversations that have work.

-- Return the user of an entry of the inbox.
local function user_of(entry)
  return string.match(entry, '^%d+ %d+ (%S+) ')
end

-- Return the field with the number of the last turn in which a user said stop.
local function stop_field(user)
  return 'stop:' .. user
end

-- Return whether so many conversations of this shard have work, or a worker, that this one cannot begin. `shares` of
-- the space above `limit` are free to the caller: one for notices of refusal, two for urgent turns.
local function is_overloaded(limit, shares)
  local most, soon = limit + shares * (limit / 10 + RESERVED_CONVERSATIONS), now() + SOON_MS
  local found = redis.call('ZCOUNT', due, '-inf', soon)
  if found < most then return false end
  local own = redis.call('ZSCORE', due, conversation)
  return found - (own and tonumber(own) <= soon and 1 or 0) >= most
end
