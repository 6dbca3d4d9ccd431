-- Postpone the first reply and release the lease until then.
-- ARGV: conversation, epoch, token, number of the reply, delay in milliseconds, why, reason. Why: 'tried' the send
-- failed, 'suspect' the send may have arrived, 'limited' the platform asks the whole channel to wait, 'down' the
-- platform does not accept the channel (the whole channel waits and nothing counts as an attempt), 'paced' the slot
-- is later (not an attempt), 'held' the user must write first (an attempt if a turn waits already).
if not holds(ARGV[2], ARGV[3]) then return 'lost' end
local head = redis.call('LINDEX', outbox, 0)
if string.match(head or '', '^%d+') ~= ARGV[4] then return 'gone' end
if ARGV[6] == 'held' and redis.call('LLEN', inbox) == 0 then
  hold(ARGV[4], ARGV[7])
  return 'ok'
end
local later = now() + ARGV[5]
redis.call('HDEL', lane, 'sending')
if ARGV[6] ~= 'paced' then redis.call('HDEL', lane, 'slot') end
if ARGV[6] ~= 'paced' and ARGV[6] ~= 'down' then redis.call('HINCRBY', lane, 'attempts', 1) end
if ARGV[6] == 'suspect' then redis.call('HSET', lane, 'suspect:' .. ARGV[4], 1) end
if ARGV[6] == 'limited' or ARGV[6] == 'down' then
  -- It keeps its place in line: its slot is the first after the wait.
  redis.call('HSET', lane, 'slot', string.format('%s:%d', ARGV[4], silence(later)))
end
if later - now() >= SOON then keep_waiting() end
-- Park the conversation: a wake-up that is still in the queue must not cut the wait short.
redis.call('HSET', lane, 'token', 'parked', 'until', later)
redis.call('ZADD', due, later, conversation)
return 'ok'
