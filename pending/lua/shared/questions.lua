-- needs: actions, keys, records, states, timers
-- A question is the message that shows an action and asks for a yes.

-- Set the timer for an unanswered question: what it sends, and what then replaces the message with the question. The
-- id is the same for each action of a user: the next question's timer replaces one that has nothing to send.
local function set_notice(kind, notice, at, timer_entry, ending)
  if not (notice or ending) or redis.call('ZCARD', timers) >= MAX_TIMERS then return end
  timer_entry.id, timer_entry.at = kind .. string.match(notice or ending, '^%S+'), at
  timer_entry.reply = string.match(notice or '', '^%S+ (.*)$')
  timer_entry.ending = string.match(ending or '', '^%S+ (.*)$')
  set_timer(timer_entry.id, at, encode_record(timer_entry))
end

-- Open the window of an action, and of a plan's steps: the user can see the preview. Set the timers for its end and for
-- the alarm, which rings before the end or in the same moment ('alarm:' sorts before 'end:').
local function open_window(pid, seen, written)
  local state, ttl, steps, notice, ending, alarm, after =
    unpack(redis.call('HMGET', action_key(pid), 'state', 'ttl', 'steps', 'notice', 'ending', 'alarm', 'alarm_after'))
  if state ~= 'armed' then return end
  enter(pid, {'shown'}, 'expires', now() + (tonumber(ttl) or 0), 'seen', seen, 'written', written, 'shown', now())
  local window = tonumber(ttl) or 0
  set_notice('alarm:', alarm, now() + math.min(window, tonumber(after) or window), {asks = pid})
  set_notice('end:', notice, now() + window, {ends = pid}, ending)
  for step in string.gmatch(steps or '', '%S+') do open_window(step, seen, written) end
end

-- Record the platform's id of the message with the question, so that the message can be changed later.
local function set_prompt(pid, message)
  if message == '' or redis.call('EXISTS', action_key(pid)) == 0 then return end
  redis.call('HSET', action_key(pid), 'prompt', message)
end

-- Record that a message shows the question, a piece of it or a copy: a reply that quotes it quotes the question.
local function add_prompt(pid, message)
  if message == '' or message == '-' or redis.call('EXISTS', action_key(pid)) == 0 then return end
  local ids = {}
  for id in string.gmatch(redis.call('HGET', action_key(pid), 'prompts') or '', '%S+') do
    if id ~= message then ids[#ids + 1] = id end
  end
  ids[#ids + 1] = message
  redis.call('HSET', action_key(pid), 'prompts', table.concat(ids, ' ', math.max(1, #ids - MAX_PROMPTS + 1)))
end

-- Record that a reply is the question, or a piece of it: the platform may report later that it failed.
local function set_asking(number, pid)
  redis.call('HSET', lane, 'asks:' .. number, pid)
end

-- A reply failed after all. An action that it asked about ends, because the user never saw the question.
local function expire_asked(number)
  local pid = redis.call('HGET', lane, 'asks:' .. number)
  local state = pid and redis.call('HGET', action_key(pid), 'state')
  if state == 'armed' or state == 'shown' then enter(pid, {'expired'}) end
end
