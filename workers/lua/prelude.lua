-- What every script starts with. KEYS[1]: the shard's prefix; ARGV[1]: the conversation.
-- A shard lives on one Redis primary and never on Redis Cluster (RQ does not run there), so keys are built here.
local shard, conversation = KEYS[1], ARGV[1]
local lane = shard .. ':lane:' .. conversation
local inbox = shard .. ':in:' .. conversation
local outbox = shard .. ':out:' .. conversation
local due = shard .. ':due'

local KEEP = 2592000000        -- a lane nobody uses is forgotten after 30 days
local KEEP_RECORD = 172800000  -- a pending action is kept for two days, so that twins hear its outcome
local WAKE_GRACE = 5000        -- a wake-up not answered within this is repeated by the reaper
local MAX_DEAD = 1000
local BUSY_NOTICE = 60000      -- one who writes too fast is told so once a minute

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function number(field)
  return tonumber(redis.call('HGET', lane, field) or '0')
end

local function record(pid)
  return shard .. ':pending:' .. pid
end

local function live(user)
  return shard .. ':live:' .. conversation .. ':' .. user
end

local function history(user)
  return shard .. ':history:' .. conversation .. ':' .. user
end

local function keep()
  for _, key in ipairs({lane, inbox, outbox}) do
    redis.call('PEXPIRE', key, KEEP)
  end
end

-- The fence: only the current holder of the lane may change it.
local function holds(epoch, token)
  return tonumber(epoch) == number('epoch') and token == redis.call('HGET', lane, 'token')
end

local function has_work()
  return redis.call('LLEN', inbox) + redis.call('LLEN', outbox) > 0
end

-- Put the RQ job that drains this conversation on its queue. ARGV from `at`: job key, queue key, queues key, job id,
-- then the job's hash as RQ wrote it. Without a job (tests, one process) the index alone says that there is work.
local function wake(at)
  redis.call('ZADD', due, now() + WAKE_GRACE, conversation)
  if ARGV[at] then
    redis.call('HSET', ARGV[at], unpack(ARGV, at + 4))
    redis.call('SADD', ARGV[at + 2], ARGV[at + 1])
    redis.call('RPUSH', ARGV[at + 1], ARGV[at + 3])
  end
end

local function say(pid, reply)
  local number_of_reply = redis.call('HINCRBY', lane, 'said', 1)
  redis.call('RPUSH', outbox, number_of_reply .. ' ' .. pid .. ' ' .. reply)
end

local function pending(pid)
  local fields = pid and redis.call('HGETALL', record(pid)) or {}
  if #fields == 0 then return {} end
  table.insert(fields, 'pid')
  table.insert(fields, pid)
  return fields
end

-- Whoever is shown a reply sends it at once. One that was shown to an earlier holder, and neither settled nor postponed
-- by it, may have arrived.
local function suspect(reply)
  local said, epoch = string.match(reply, '^%d+'), redis.call('HGET', lane, 'epoch')
  local sending = redis.call('HGET', lane, 'sending')
  if sending and sending ~= said .. ':' .. epoch and string.match(sending, '^%d+') == said then
    redis.call('HSET', lane, 'suspect', said)
  end
  redis.call('HSET', lane, 'sending', said .. ':' .. epoch)
  return redis.call('HGET', lane, 'suspect') == said and 1 or 0
end

-- What the holder has to do next: a reply to send, else a turn to work on with all it needs, else nothing.
local function view()
  local reply = redis.call('LINDEX', outbox, 0)
  if reply then return {'reply', reply, number('attempts') + 1, suspect(reply)} end
  local turn = redis.call('LINDEX', inbox, 0)
  if not turn then return {'idle'} end
  local user, tapped = string.match(turn, '^%d+ %d+ (%S+) (%S+) ')
  return {
    'turn', turn, pending(redis.call('GET', live(user))), pending(tapped),
    redis.call('GET', history(user)) or '',
  }
end

-- States in which an action still occupies its scope.
local OPEN = {armed = true, shown = true, claimed = true, started = true}

local function set_state(pid, state, told)
  redis.call('HSET', record(pid), 'state', state)
  if told and told ~= '' then redis.call('HSET', record(pid), 'told', told) end
  redis.call('PEXPIRE', record(pid), KEEP_RECORD)
end

-- An action that is over stays the scope's own until the deciding turn is committed: a turn that is worked on again
-- after a crash must find the outcome.
local function forget_settled(user)
  local pid = redis.call('GET', live(user))
  if pid and not OPEN[redis.call('HGET', record(pid), 'state') or ''] then redis.call('DEL', live(user)) end
end

-- Only the holder of the lane decides here, so what is still claimed when a turn ends is in nobody's hands any more.
local function abandon(user)
  local pid = redis.call('GET', live(user))
  local state = pid and redis.call('HGET', record(pid), 'state')
  if state == 'claimed' then set_state(pid, 'superseded') end
  if state == 'started' then set_state(pid, 'unknown') end
end

-- The window opens when the user can see the preview.
local function show(pid, seen)
  if redis.call('HGET', record(pid), 'state') ~= 'armed' then return end
  local ttl = tonumber(redis.call('HGET', record(pid), 'ttl'))
  redis.call('HSET', record(pid), 'expires', now() + ttl, 'seen', seen)
  set_state(pid, 'shown')
end

-- Whether the moves and the arming of `change` are possible; nil when they are.
local function obstacle(change)
  local move, arm = change.move, change.arm
  if move then
    local state, possible = redis.call('HGET', record(move.pid), 'state'), false
    for _, from in ipairs(move.from) do possible = possible or state == from end
    if not possible then return 'state' end
  end
  if arm then
    local other = redis.call('GET', live(arm.user))
    if other and other ~= arm.pid and not (move and move.pid == other) then
      local state = redis.call('HGET', record(other), 'state')
      local expires = tonumber(redis.call('HGET', record(other), 'expires') or '0')
      if state == 'shown' and now() >= expires then
        set_state(other, 'expired')
      elseif OPEN[state or ''] then
        return 'exists'
      end
    end
  end
end

local function apply(change)
  local move, arm = change.move, change.arm
  if move then
    set_state(move.pid, move.to, move.told)
    if move.by then redis.call('HSET', record(move.pid), 'by', move.by) end
  end
  if arm and redis.call('EXISTS', record(arm.pid)) == 0 then
    redis.call('HSET', record(arm.pid), 'rec', arm.rec, 'mac', arm.mac, 'state', 'armed', 'ttl', arm.ttl,
      'user', arm.user, 'idempotent', arm.idempotent and '1' or '0')
    redis.call('PEXPIRE', record(arm.pid), KEEP_RECORD)
    redis.call('SET', live(arm.user), arm.pid, 'PX', KEEP_RECORD)
  end
end
