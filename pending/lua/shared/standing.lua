-- The standing yeses of a user in a conversation: yeses that also count for later calls.
--
-- Each is JSON with a seal (`StandingYes` in Python), under the id of the action that was confirmed
-- with it. The scripts read only the time at which it ends.

-- A hash: the standing yeses of a user, by id.
local function standing_key(user)
  return shard .. ':standing:' .. conversation .. ':' .. user
end

-- Return when a standing yes ends, in Unix milliseconds, 0 for one that cannot be read.
local function end_of_standing(json)
  local is_readable, yes = pcall(cjson.decode, json)
  if not is_readable or type(yes) ~= 'table' then return 0 end
  return (tonumber(yes.expires_at) or 0) * 1000
end

-- Return the ids of a user's standing yeses with the time at which each ends, the first to end
-- first.
local function standing_by_end(key)
  local all = {}
  local fields = redis.call('HGETALL', key)
  for at = 1, #fields, 2 do
    all[#all + 1] = {id = fields[at], ends_at = end_of_standing(fields[at + 1])}
  end
  table.sort(all, function(one, other)
    if one.ends_at == other.ends_at then return one.id < other.id end
    return one.ends_at < other.ends_at
  end)
  return all
end

-- Store a standing yes: its `id` and `json`. Earlier ones that have ended are removed, and of too
-- many the first to end: its calls are asked about again.
local function store_standing(user, new)
  local key = standing_key(user)
  local earlier = standing_by_end(key)
  for at, each in ipairs(earlier) do
    local is_too_many = #earlier - at + 1 >= MAX_STANDING
    if each.ends_at <= now() or is_too_many then redis.call('HDEL', key, each.id) end
  end
  redis.call('HSET', key, new.id, new.json)
  local all = standing_by_end(key)
  redis.call('PEXPIRE', key, math.max(1, math.ceil(all[#all].ends_at - now())))
end

-- Book a use (`StandingUse.to_dict` in Python). Return false, and change nothing, if the standing
-- yes is over, was revoked, or is not as it was read.
local function use_standing(user, use)
  local key = standing_key(user)
  if now() >= use.expires_at then return false end
  if redis.call('HGET', key, use.id) ~= use.before then return false end
  redis.call('HSET', key, use.id, use.after)
  return true
end

-- End standing yeses of a user. `ids`: which ones, empty for all.
local function revoke_standing(user, ids)
  if #ids == 0 then
    redis.call('DEL', standing_key(user))
    return
  end
  for _, id in ipairs(ids) do redis.call('HDEL', standing_key(user), id) end
end
