-- What every script starts with. KEYS[1]: the shard's prefix; ARGV[1]: the conversation.
-- A shard lives on one Redis primary and never on Redis Cluster (RQ does not run there), so keys are built here.
local shard, conversation = KEYS[1], ARGV[1]
local lane = shard .. ':lane:' .. conversation
local inbox = shard .. ':in:' .. conversation
local outbox = shard .. ':out:' .. conversation
local due = shard .. ':due'
local timers = shard .. ':timers:' .. conversation  -- when each timer rings
local timer = shard .. ':timer:' .. conversation    -- and what it says then
local journal = shard .. ':journal:' .. conversation

local KEEP = 2592000000        -- a lane nobody uses is forgotten after 30 days
local KEEP_RECORD = 172800000  -- a pending action is kept for two days, so that twins hear its outcome
local WAKE_GRACE = 5000        -- a wake-up not answered within this is looked after by the reaper
local LOOK_AGAIN = 10000       -- and again after this while it stands in the queue; within SOON: it counts as waiting
local KEEP_DELIVERY = 604800000  -- what became of a reply can be looked up for a week
local KEEP_HELD = 604800000    -- so long a reply waits for its person to write
local KEEP_PACE = 86400000     -- how fast a channel sends is forgotten a day after it was said
local MAX_DELIVERIES = 50      -- of the last so many replies of a conversation
local MAX_ASIDE = 1000
local SPREAD = 50              -- milliseconds between those that waited for a channel that names no pace
local MAX_TIMERS = 100         -- of one conversation
local MAX_WAITING = 100        -- replies in a conversation to which others forward theirs
local SOON = 15000             -- what is due within this has work, or a holder; later ones wait for a platform or a timer
local BUSY_NOTICE = 60000      -- one whose turns are refused is told so once a minute
local URGENT_PLACES = 10       -- beyond a full mailbox, for taps, stops and answers to a question
local URGENT_EACH = 2          -- of these for one person
local SPARE = 10               -- conversations in each share that a crowd leaves free, beside a tenth of its limit
local MAX_PROMPTS = 50         -- messages that may show one question: its pieces, copies and repetitions
local MAX_BURST = 10           -- turns that may be worked on as one
local FIRST = 'first-'         -- what the ids of urgent jobs begin with
local STALE = 120000           -- what was begun so long ago, without a lane, is in nobody's hands any more
local ASKED_AGAIN = 60000      -- a client that lost an answer asks for it again within this
local MAX_UNDRAINED = 5000     -- audit entries that wait for a worker; beyond that the oldest go, and leave a gap
local NO_HEAD = string.rep('0', 40)

local clock
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return clock
end

local function number(field)
  return tonumber(redis.call('HGET', lane, field) or '0')
end

-- The next number of this lane. On a server that has forgotten some, a new lane begins beyond all that were ever given.
local function next_number(field)
  local n = redis.call('HINCRBY', lane, field, 1)
  local floor = n == 1 and redis.call('GET', shard .. ':floor')
  return floor and redis.call('HINCRBY', lane, field, floor) or n
end

local function record(pid)
  return shard .. ':pending:' .. pid
end

local function live(user)
  return shard .. ':live:' .. conversation .. ':' .. user
end

-- A question that waits to be shown is kept meanwhile, with its steps and as what its scope waits for.
local function keep_question(pid)
  local user, steps = unpack(redis.call('HMGET', record(pid), 'user', 'steps'))
  redis.call('PEXPIRE', record(pid), KEEP_HELD + KEEP_RECORD)
  if user and redis.call('GET', live(user)) == pid then redis.call('PEXPIRE', live(user), KEEP_HELD + KEEP_RECORD) end
  for step in string.gmatch(steps or '', '%S+') do redis.call('PEXPIRE', record(step), KEEP_HELD + KEEP_RECORD) end
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
  local held_by, with = unpack(redis.call('HMGET', lane, 'epoch', 'token'))
  return tonumber(epoch) == tonumber(held_by or '0') and token == with
end

local function has_work()
  return redis.call('LLEN', inbox) + redis.call('LLEN', outbox) > 0
end

-- A reply that nobody may be told before they write is held: its number, how many turns had come in by then, since when,
-- why. Returns the last two while it is the first in line and nobody wrote.
local HELD = '^(%d+) (%d+) (%d+) (.*)$'
local function held()
  local said, received, since, why = string.match(redis.call('HGET', lane, 'held') or '', HELD)
  if not said or tonumber(received) ~= number('received') then return end
  if string.match(redis.call('LINDEX', outbox, 0) or '', '^%d+') == said then return tonumber(since), why end
end

-- Whether somebody comes anyway: a holder, or the wake-up or retry of what waits already. A timer brings nobody before
-- it rings, and what is held nobody before somebody writes.
local function awaited()
  return redis.call('ZSCORE', due, conversation) and (number('until') > now() or (has_work() and not held()))
end

-- Whether so many others of this shard have work, or a holder, that this conversation cannot begin. Beyond `most` a
-- crowd leaves shares free: the first for telling who is refused, the second for who is urgent.
local function crowd(most, shares)
  local room, soon = most + shares * (most / 10 + SPARE), now() + SOON
  local found = redis.call('ZCOUNT', due, '-inf', soon)
  if found < room then return false end
  local mine = redis.call('ZSCORE', due, conversation)
  return found - (mine and tonumber(mine) <= soon and 1 or 0) >= room
end

-- Nothing is left to do now: the next timer, if there is one, is what this conversation is due for.
local function rest()
  local rings = redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2]
  if rings then redis.call('ZADD', due, rings, conversation) else redis.call('ZREM', due, conversation) end
end

local function hurries(job)
  return string.sub(job, 1, #FIRST) == FIRST
end

-- When a job was put on the queue, among all of this server; nil for somebody else's.
local function place_in_time(job)
  return tonumber(string.match(job, '_(%d+)$') or '')
end

-- Whether a lane's job still stands in the queue. That is not searched: it would take the longer the more wait there. A
-- job that was begun, or is over, says so in its hash. Of one whose worker died before, the order tells: urgent ones come
-- in at the front, all others at the end, and each leaves at the front. Where the head tells nothing, it is taken to
-- stand, and whoever looks after it asks again. ARGV from `at`: what job keys begin with, queue key.
local function stands(job, at)
  if redis.call('HGET', ARGV[at] .. job, 'status') ~= 'queued' then return false end
  local head = redis.call('LINDEX', ARGV[at + 1], 0)
  if not head then return false end
  local first, mine = place_in_time(head), place_in_time(job) or 0
  if not first then return true end
  if hurries(job) then return hurries(head) and first >= mine end
  return hurries(head) or first <= mine
end

-- Put the RQ job that drains this conversation on its queue, an urgent one at its front; its id ends with the tide, which
-- says when. ARGV from `at`: what job keys begin with, queue key, queues key, job id, then the job's hash as RQ wrote it.
-- Without a job (tests, one process) the index alone says that there is work. Returns false when one stands there already.
local function wake(at, urgent)
  redis.call('ZADD', due, now() + WAKE_GRACE, conversation)
  if not ARGV[at] then return true end
  local queued = redis.call('HGET', lane, 'job')
  if queued and (hurries(queued) or not urgent) and stands(queued, at) then return false end  -- that will do
  local tide = redis.call('GET', string.match(shard, '^(.-){') .. 'tide')
  local id = (urgent and FIRST or '') .. ARGV[at + 3] .. '_' .. (tide or 0)
  redis.call('HSET', lane, 'job', id)
  redis.call('HSET', ARGV[at] .. id, unpack(ARGV, at + 4))
  redis.call('SADD', ARGV[at + 2], ARGV[at + 1])
  redis.call(urgent and 'LPUSH' or 'RPUSH', ARGV[at + 1], id)
  return true
end

-- Whether a user has used up what may be said in one go, and what has been gained per minute since: one key, which holds
-- when all of it is gained back.
local function too_fast(user, per_minute, in_one_go)
  local key, gain = shard .. ':pace:' .. conversation .. ':' .. user, 60000 / per_minute
  local whole = math.max(tonumber(redis.call('GET', key) or '0'), now()) + gain
  if whole - now() > gain * in_one_go then return true end
  redis.call('SET', key, string.format('%d', whole), 'PX', string.format('%d', whole - now() + 1000))
  return false
end

-- Only the newest of a kind waits: a waiting reply that begins with the same mark becomes this one, in its place. One
-- that is being sent, or may have arrived, stays what it was.
local function collapsed(mark, reply)
  local sending = string.match(redis.call('HGET', lane, 'sending') or '', '^%d+')
  for at, waiting in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
    local said, old = string.match(waiting, '^(%d+) %- (.*)$')
    local same = said and said ~= sending and string.sub(old, 1, #mark) == mark
    if same and redis.call('HEXISTS', lane, 'suspect:' .. said) == 0 then
      redis.call('LSET', outbox, at - 1, said .. ' - ' .. reply)
      return said
    end
  end
end

local function say(pid, reply)
  local mark = pid == '-' and string.match(reply, '^{"collapse": "[^"]+"')
  local taken = mark and collapsed(mark, reply)
  if taken then return taken end
  local number_of_reply = next_number('said')
  local waiting = redis.call('RPUSH', outbox, number_of_reply .. ' ' .. pid .. ' ' .. reply)
  if waiting == 1 then redis.call('PEXPIRE', outbox, KEEP) end
  return tostring(number_of_reply)
end

-- What became of a reply. A status that the platform reported before us stays.
local deliveries = shard .. ':delivery:' .. conversation
local function note(said, state, tries, receipt, reason)
  local words = table.concat({state, now(), tries, receipt ~= '' and receipt or '-', reason or ''}, ' ')
  local new = redis.call('HSETNX', deliveries, said, words) == 1
  redis.call('HDEL', deliveries, said - MAX_DELIVERIES)
  redis.call('PEXPIRE', deliveries, KEEP_DELIVERY)
  return new
end

local function put_aside(list, entry)
  redis.call('LPUSH', list, cjson.encode(entry))
  redis.call('LTRIM', list, 0, MAX_ASIDE - 1)
  redis.call('PEXPIRE', list, KEEP)
end

-- In how many milliseconds a reply may go out, by the pace of its channel and what the platform asked for; -1 where
-- nobody said how fast. Each reply has a slot of its own, booked once: those that wait come one by one, not at once.
local function channel_pace()
  return string.match(shard, '^(.-){') .. 'pace:' .. string.match(conversation, '^[^:]*')
end

local function booked(said)
  local pace = channel_pace()
  local gap, free, closed = unpack(redis.call('HMGET', pace, 'gap', 'free', 'closed'))
  closed = tonumber(closed or '0')
  if not gap and closed <= now() then return -1 end
  local mine = tonumber(string.match(redis.call('HGET', lane, 'slot') or '', '^' .. said .. ':(%d+)$') or '-1')
  if mine < closed or mine < 0 then
    mine = math.ceil(math.max(now(), tonumber(free or '0'), closed))
    redis.call('HSET', pace, 'free', math.max(now(), tonumber(free or '0'), closed) + tonumber(gap or SPREAD))
    redis.call('HSET', lane, 'slot', string.format('%s:%d', said, mine))
    if mine > now() then redis.call('PEXPIRE', pace, mine - now() + KEEP_PACE) end
  end
  return math.max(0, mine - now())
end

-- A platform asks its whole channel to wait. Returns until when, with what it asked before.
local function silence(later)
  local pace = channel_pace()
  local closed, free, gap = unpack(redis.call('HMGET', pace, 'closed', 'free', 'gap'))
  later = math.max(later, tonumber(closed or '0'))
  redis.call('HSET', pace, 'closed', later, 'free', math.max(later, tonumber(free or '0')) + tonumber(gap or SPREAD))
  redis.call('PEXPIRE', pace, later - now() + KEEP_PACE)
  return later
end

-- What waits to be sent may wait for long.
local function keep_waiting()
  keep()
  for _, waiting in ipairs(redis.call('LRANGE', outbox, 0, -1)) do
    local pid = string.match(waiting, '^%d+ ([^+= ]%S*) ')
    if pid and pid ~= '-' then keep_question(pid) end  -- an id may begin with one
  end
end

-- The first reply waits for somebody to write, and nobody has to come before that, a timer, or its end.
local function hold(said, why)
  local since, first_why = held()
  local rings = redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2]
  since = since or now()
  redis.call('HSET', lane, 'held', table.concat({said, number('received'), since, first_why or why}, ' '), 'attempts', 0,
    'token', '', 'until', 0, 'begun', '')
  redis.call('HDEL', lane, 'sending', 'slot')
  redis.call('ZADD', shard .. ':held', since, conversation)
  redis.call('PEXPIRE', shard .. ':held', KEEP)
  redis.call('ZADD', due, math.min(since + KEEP_HELD, tonumber(rings or since + KEEP_HELD)), conversation)
  keep_waiting()
end

-- Somebody wrote: what was held is tried again.
local function unhold()
  if redis.call('HDEL', lane, 'held') == 1 then redis.call('ZREM', shard .. ':held', conversation) end
end

-- A timer with this name, or what takes its place. All of a conversation are kept for as long as the last one needs.
local function set_timer(id, at, what)
  redis.call('HSET', timer, id, what)
  redis.call('ZADD', timers, at, id)
  local last = redis.call('ZRANGE', timers, -1, -1, 'WITHSCORES')[2]
  for _, key in ipairs({timers, timer}) do
    redis.call('PEXPIRE', key, math.max(0, last - now()) + KEEP)
  end
end

local function drop_timer(id)
  redis.call('ZREM', timers, id)
  redis.call('HDEL', timer, id)
end

-- Whether these are more timers than a conversation may have.
local function crowded(change)
  return #change.timers > 0 and redis.call('ZCARD', timers) + #change.timers - #change.silenced > MAX_TIMERS
end

local function pending(pid)
  local fields = pid and redis.call('HGETALL', record(pid)) or {}
  if #fields == 0 then return {} end
  table.insert(fields, 'pid')
  table.insert(fields, pid)
  if redis.call('HGET', lane, 'newest') == pid then  -- nothing was said since
    table.insert(fields, 'newest')
    table.insert(fields, '1')
  end
  return fields
end

-- Whoever is shown a reply sends it at once. One that was shown to an earlier holder, and neither settled nor postponed
-- by it, may have arrived.
local function suspect(reply)
  local said, epoch = string.match(reply, '^%d+'), redis.call('HGET', lane, 'epoch')
  local sending = redis.call('HGET', lane, 'sending')
  if sending and sending ~= said .. ':' .. epoch and string.match(sending, '^%d+') == said then
    redis.call('HSET', lane, 'suspect:' .. said, 1)
  end
  redis.call('HSET', lane, 'sending', said .. ':' .. epoch)
  return redis.call('HEXISTS', lane, 'suspect:' .. said)
end

-- The platform's id of a reply that may have arrived, if the platform told us by now that it did.
local function arrived(said)
  local state, receipt = string.match(redis.call('HGET', deliveries, said) or '', '^(%S+) %d+ %d+ (%S+)')
  return (state == 'sent' or state == 'delivered' or state == 'read') and receipt or ''
end

-- Milliseconds since anybody last wrote here; -1 where nobody knows, -2 where nobody ever did.
local function quiet()
  local heard = redis.call('HGET', lane, 'heard')
  if heard then return math.max(0, now() - heard) end
  return number('received') == 0 and -2 or -1
end

-- Why the address takes nothing, '' where it does: whoever writes again can be reached again. Where nobody ever wrote,
-- nobody would, so that is not believed for longer than the reply that met it.
local function closed()
  local turns, reason = string.match(redis.call('HGET', lane, 'closed') or '', '^(%d+) (.*)$')
  return turns and turns ~= '0' and tonumber(turns) == number('received') and reason or ''
end

-- It takes nothing until somebody writes; who wrote meanwhile is tried first.
local function close(why)
  if redis.call('LLEN', inbox) == 0 then redis.call('HSET', lane, 'closed', number('received') .. ' ' .. why) end
end

-- What another conversation is to say is put there once, whoever tries, and goes out at the pace of that one. What is held
-- is shown to nobody who would send it.
local function to_send(reply)
  local attempt = number('attempts') + 1
  if string.find(reply, '^%d+ %- {"forward"') then return {'reply', reply, attempt, 0, -1, 0, '', -1, -1, ''} end
  local said, since = string.match(reply, '^%d+'), held()
  if since then
    local doubtful = redis.call('HEXISTS', lane, 'suspect:' .. said)
    return {'reply', reply, attempt, doubtful, -1, 0, '', quiet(), now() - since, closed()}
  end
  local doubtful, ahead = suspect(reply), math.max(0, number('chat') - now())
  return {
    'reply', reply, attempt, doubtful, booked(said), ahead, doubtful == 1 and arrived(said) or '', quiet(), -1, closed(),
  }
end

-- How many holders of the lane were shown this turn: one that was is taken to have begun it, unless it let the lane go.
local function times_begun(turn)
  local seq = string.match(turn, '^%d+')
  local epoch, begun = unpack(redis.call('HMGET', lane, 'epoch', 'begun'))
  local last, by, times = string.match(begun or '', '^(%d+) (%d+) (%d+)$')
  if last ~= seq then by, times = '', 0 end
  if by == epoch then return tonumber(times) end
  redis.call('HSET', lane, 'begun', seq .. ' ' .. epoch .. ' ' .. times + 1)
  return times + 1
end

-- Whose turn an entry of the mailbox is.
local function user_of(turn)
  return string.match(turn, '^%d+ %d+ (%S+) ')
end

-- Where it is kept that a user said stop: the number of the turn that did.
local function stop_of(user)
  return 'stop:' .. user
end

-- Whether a turn of this user waits, or is worked on.
local function has_turn(user)
  for _, turn in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
    if user_of(turn) == user then return true end
  end
  return false
end

-- Turns right behind the first, of the same user and without buttons: they may be worked on as one, or are parts of one.
local function burst(user, tapped)
  local found = {}
  if tapped ~= '-' then return found end
  for _, entry in ipairs(redis.call('LRANGE', inbox, 1, MAX_BURST - 1)) do
    local other, button = string.match(entry, '^%d+ %d+ (%S+) (%S+) ')
    if other ~= user or button ~= '-' then break end
    found[#found + 1] = entry
  end
  return found
end

-- What the holder has to do next: a reply to send, else a turn to work on with all it needs, else nothing.
local function view()
  local reply = redis.call('LINDEX', outbox, 0)
  if reply then return to_send(reply) end
  local turn = redis.call('LINDEX', inbox, 0)
  if not turn then return {'idle'} end
  local at, user, tapped = string.match(turn, '^%d+ (%d+) (%S+) (%S+) ')
  return {
    'turn', turn, pending(redis.call('GET', live(user))), pending(tapped),
    redis.call('GET', history(user)) or '', burst(user, tapped), number(stop_of(user)), redis.call('HVALS', timer),
    redis.call('LRANGE', journal, 0, -1), times_begun(turn), now() - at,
  }
end

-- What is next; with '1', a holder that has nothing left to do has let go in the same step.
local function next_work(let_go, epoch, token)
  local work = view()
  if let_go == '1' and work[1] == 'idle' then
    redis.call('HSET', lane, 'token', '', 'until', 0, 'begun', '', 'ended', epoch .. ':' .. token)
    rest()
  end
  return work
end

-- Whether this holder has let go so, and lost the answer.
local function ended(epoch, token)
  return redis.call('HGET', lane, 'ended') == epoch .. ':' .. token
end

-- An action as the pending room reads it: its name, this server's time, and its fields in this order. What follows
-- them is for scripts that must know more of it.
local function fields_of(pid, ...)
  return redis.call('HMGET', record(pid), 'rec', 'mac', 'state', 'expires', 'by', 'attempt', 'told', 'result', 'seen',
    'begun', 'prompt', 'prompts', 'written', ...)
end

local function snapshot(pid)
  local fields = fields_of(pid)
  return fields[1] and {pid, now(), fields} or {}
end

-- States in which an action still occupies its scope.
local OPEN = {armed = true, shown = true, claimed = true, started = true}

-- Entries of the audit log, in the same step as what they record: each names the head of the one before. The record
-- itself stays out: `body` is its MAC, which proves the record while it is kept and tells nothing once it is erased.
local function audit(pid, events, by, mac)
  local log, entries = shard .. ':audit', {}
  local n, head = string.match(redis.call('GET', log .. ':head') or '', '^(%d+) (%x+)$')
  n, head = tonumber(n or redis.call('GET', shard .. ':floor') or '0'), head or NO_HEAD
  for at, event in ipairs(events) do
    n = n + 1
    entries[at] = string.format('{"n":%d,"at":%d,"pid":"%s","event":"%s","by":%s,"body":"%s","prev":"%s"}',
      n, now(), pid, event, cjson.encode(by), mac, head)
    head = redis.sha1hex(entries[at])
  end
  redis.call('SET', log .. ':head', string.format('%d %s', n, head))
  if redis.call('RPUSH', log, unpack(entries)) > MAX_UNDRAINED then redis.call('LPOP', log, #entries) end
end

-- How a plan's open steps end with it: what has begun is unknown, the rest was not done.
local STEP_END = {expired = 'expired', superseded = 'superseded'}

local function end_of_step(step_state, plan_state)
  if step_state == 'started' then return 'unknown' end
  return STEP_END[plan_state] or 'cancelled'
end

-- Enter these states one after the other. ...: other fields that change with them. `entered` is the second half of it,
-- for who has changed the fields and knows the rest.
local enter, entered
function entered(pid, states, by, mac, steps)
  local state = states[#states]
  audit(pid, states, by or '', mac or '')
  if OPEN[state] then return end
  redis.call('PEXPIRE', record(pid), KEEP_RECORD)
  for step in string.gmatch(steps or '', '%S+') do
    local step_state = redis.call('HGET', record(step), 'state') or ''
    if OPEN[step_state] then enter(step, {end_of_step(step_state, state)}, 'by', by or '') end
  end
end

function enter(pid, states, ...)
  local key = record(pid)
  redis.call('HSET', key, 'state', states[#states], ...)
  entered(pid, states, unpack(redis.call('HMGET', key, 'by', 'mac', 'steps')))
end

-- An action that is over stays the scope's own until the deciding turn is committed: a turn that is worked on again
-- after a crash must find the outcome. Then its timers have nothing to say any more.
local function forget_settled(user)
  local pid = redis.call('GET', live(user))
  if not pid or OPEN[redis.call('HGET', record(pid), 'state') or ''] then return end
  redis.call('DEL', live(user))
  drop_timer('alarm:' .. user)
  drop_timer('end:' .. user)
end

-- What is in nobody's hands any more.
local function abandon(pid)
  local state = redis.call('HGET', record(pid), 'state')
  if state == 'claimed' then enter(pid, {'superseded'}) end
  if state == 'started' then enter(pid, {'unknown'}) end
end

-- What this event claimed and its turn did not settle.
local function abandon_own(pid, event)
  if pid and redis.call('HGET', record(pid), 'by') == event then abandon(pid) end
end

-- What a question has to say when nobody answers it, and what then takes the place of the message that asked. A scope
-- waits for one action at a time: the notice of the next takes the place of one that has nothing to say.
local function set_notice(kind, words, at, what, ending)
  if not (words or ending) or redis.call('ZCARD', timers) >= MAX_TIMERS then return end
  what.id, what.at = kind .. string.match(words or ending, '^%S+'), at
  what.reply = string.match(words or '', '^%S+ (.*)$')
  what.ending = string.match(ending or '', '^%S+ (.*)$')
  set_timer(what.id, at, cjson.encode(what))
end

-- The window opens when the user can see the preview: of a plan, that of all its steps. Its end is told, if it is to be,
-- and others are alarmed before that, or in the same moment ('alarm:' sorts before 'end:').
local function show(pid, seen, written)
  local state, ttl, steps, notice, ending, alarm, after =
    unpack(redis.call('HMGET', record(pid), 'state', 'ttl', 'steps', 'notice', 'ending', 'alarm', 'alarm_after'))
  if state ~= 'armed' then return end
  enter(pid, {'shown'}, 'expires', now() + (tonumber(ttl) or 0), 'seen', seen, 'written', written)
  local window = tonumber(ttl) or 0
  set_notice('alarm:', alarm, now() + math.min(window, tonumber(after) or window), {asks = pid})
  set_notice('end:', notice, now() + window, {ends = pid}, ending)
  for step in string.gmatch(steps or '', '%S+') do show(step, seen, written) end
end

-- Under which id its platform shows the question: whoever decides later can change that message.
local function note_prompt(pid, message)
  if message ~= '' and redis.call('EXISTS', record(pid)) == 1 then redis.call('HSET', record(pid), 'prompt', message) end
end

-- Note that this message of the platform shows the question, or a piece or a copy of it: whoever quotes it, quotes the
-- question.
local function note_shows(pid, message)
  if message == '' or message == '-' or redis.call('EXISTS', record(pid)) == 0 then return end
  local ids = {}
  for id in string.gmatch(redis.call('HGET', record(pid), 'prompts') or '', '%S+') do
    if id ~= message then ids[#ids + 1] = id end
  end
  ids[#ids + 1] = message
  redis.call('HSET', record(pid), 'prompts', table.concat(ids, ' ', math.max(1, #ids - MAX_PROMPTS + 1)))
end

-- Which reply asks for an action, or a piece of the question, should its platform say later that it failed.
local function note_asking(said, pid)
  redis.call('HSET', lane, 'asks:' .. said, pid)
end

-- The reply failed after all: what it asked for ends, for nobody agrees to what was never shown.
local function unasked(said)
  local pid = redis.call('HGET', lane, 'asks:' .. said)
  local state = pid and redis.call('HGET', record(pid), 'state')
  if state == 'armed' or state == 'shown' then enter(pid, {'expired'}) end
end

-- Whether the window closed on an action that nobody answered: it ends here.
local function ran_out(pid)
  local state, expires = unpack(redis.call('HMGET', record(pid), 'state', 'expires'))
  if state ~= 'shown' or now() < (tonumber(expires) or 0) then return false end
  enter(pid, {'expired'})
  return true
end

-- Whether a timer that is due has anything to say: one about a question only while nobody answered it.
local function speaks(what)
  if what.ends then return ran_out(what.ends) end
  return not what.asks or redis.call('HGET', record(what.asks), 'state') == 'shown'
end

-- Say this in the place of the message that asked, where anybody knows which that is.
local function close_prompt(pid, ending)
  local prompt = redis.call('HGET', record(pid), 'prompt')
  if not prompt then return end
  local entry = cjson.decode(ending)
  local reply = cjson.decode(entry.reply)
  reply.edits = prompt
  entry.reply = cjson.encode(reply)
  say('-', cjson.encode(entry))
end

-- The timers that are due say what they have to say, in the step that forgets them. What is about a question waits until
-- no turn does: a yes that was sent in time may be among them.
local function ring()
  local rung = redis.call('ZRANGEBYSCORE', timers, '-inf', now())
  for _, id in ipairs(rung) do
    local what = cjson.decode(redis.call('HGET', timer, id) or '{}')
    if not (what.ends or what.asks) or redis.call('LLEN', inbox) == 0 then
      drop_timer(id)
      if (what.reply or what.ending) and speaks(what) then
        if what.ending then close_prompt(what.ends, what.ending) end
        if what.reply then say('-', what.reply) end
      end
    end
  end
  if #rung > 0 then keep() end
end

-- Whether another action is in the way of this one, which may take the place of the one that is moved.
local function occupied(arm, move)
  local other = arm.live and redis.call('GET', live(arm.user))
  if not other or other == arm.pid or (move and move.pid == other) then return false end
  local state, expires, begun = unpack(redis.call('HMGET', record(other), 'state', 'expires', 'begun'))
  if state == 'shown' and now() >= (tonumber(expires) or 0) then
    enter(other, {'expired'})
    return false
  end
  if (state == 'claimed' or state == 'started') and now() - (tonumber(begun) or 0) > STALE then
    abandon(other)
    return false
  end
  return OPEN[state or ''] or false
end

-- Whether the move and the arming of `change` are possible; nil when they are.
local function obstacle(change)
  local move = change.move
  if move then
    local state, by, late = unpack(redis.call('HMGET', record(move.pid), 'state', 'by', 'late'))
    if late then  -- the truth about a step came in since this was put into words
      redis.call('HDEL', record(move.pid), 'late')
      return 'state'
    end
    local possible = state == move.to and by == move.by  -- asked again: the answer was lost
    for _, from in ipairs(move.from) do possible = possible or state == from end
    -- Nobody did what expired meanwhile: whoever says that it is let go says no untruth.
    possible = possible or (state == 'expired' and (move.to == 'cancelled' or move.to == 'expired'))
    if not possible then return 'state' end
  end
  for _, arm in ipairs(change.arms) do
    if occupied(arm, move) then return 'exists' end
  end
end

-- Store an action: armed until its preview was delivered, or, where nobody delivers, shown at once. Returns when its
-- window closes.
local function arm_action(arm, at_once)
  local key = record(arm.pid)
  if redis.call('EXISTS', key) == 1 then return redis.call('HGET', key, 'expires') end  -- asked again
  local state, expires, events = 'armed', 0, {'armed'}
  if at_once then state, expires, events = 'shown', now() + arm.ttl, {'armed', 'shown'} end
  redis.call('HSET', key, 'rec', arm.rec, 'mac', arm.mac, 'kind', arm.kind, 'digest', arm.digest, 'ttl', arm.ttl,
    'user', arm.user, 'state', state, 'expires', expires, 'seen', 0, unpack(arm.more))
  redis.call('PEXPIRE', key, KEEP_RECORD)
  audit(arm.pid, events, '', arm.mac)
  if arm.live then redis.call('SET', live(arm.user), arm.pid, 'PX', KEEP_RECORD) end
  return expires
end

local function apply(change, at_once)
  local move = change.move
  local state = move and redis.call('HGET', record(move.pid), 'state')
  if move and state ~= move.to and state ~= 'expired' then
    local fields = move.by and {'by', move.by} or {}
    if move.told ~= '' then fields[#fields + 1], fields[#fields + 2] = 'told', move.told end
    enter(move.pid, {move.to}, unpack(fields))
  elseif move and move.told ~= '' then
    redis.call('HSET', record(move.pid), 'told', move.told)
  end
  for _, arm in ipairs(change.arms) do arm_action(arm, at_once) end
end
