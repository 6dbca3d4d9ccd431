-- The first reply is sent, or never will be. ARGV: conversation, epoch, token, reply number, outcome, detail, by how many
-- milliseconds it brings its chat ahead of its pace. Outcomes: 'sent' (detail: receipt); 'dead', 'doubtful' (the last
-- try may have arrived), 'closed' (so is the address), 'limited' (its channel is silent for those milliseconds), each with
-- the reason. '1' to let the lane go when nothing is left. A piece of a question, before its last, has a + before the
-- question's id: it opens no window, and if it never arrives the question ends, for nobody agrees to half of one. One
-- that only repeats a question has a = there. Then: when the platform says it shows the reply, in microseconds. Last: why
-- the reply is no answer, '' for one that is.
if ended(ARGV[2], ARGV[3]) then return {'ok', {'idle'}} end
if not holds(ARGV[2], ARGV[3]) then return {'lost'} end
local head = redis.call('LINDEX', outbox, 0)
local said, pid, entry = string.match(head or '', '^(%d+) (%S+) (.*)$')
if said ~= ARGV[4] then return {'gone', next_work(ARGV[8], ARGV[2], ARGV[3])} end
local mark, asked = string.match(pid, '^([+=]?)(.*)$')
local asks = pid ~= '-' and mark ~= '='
local doubtful = ARGV[5] == 'doubtful' or redis.call('HEXISTS', lane, 'suspect:' .. said) == 1
local aside = {id = conversation .. '#' .. said, at = now(), tries = number('attempts') + 1}
redis.call('LPOP', outbox)
unhold()
redis.call('HSET', lane, 'attempts', 0)
redis.call('HDEL', lane, 'sending', 'slot', 'suspect:' .. said, 'asks:' .. (said - MAX_DELIVERIES))
if ARGV[5] == 'sent' then
  local copy = string.match(redis.call('HGET', deliveries, said) or '', '^%S+ %d+ %d+ (%S+)')
  local failed = string.match(redis.call('HGET', deliveries, said) or '', '^failed %d+ %d+ (%S+)')
  if failed and ARGV[6] ~= '' and failed ~= ARGV[6] then redis.call('HDEL', deliveries, said) end  -- an earlier copy did
  local new = note(said, doubtful and 'ambiguous' or 'sent', aside.tries, ARGV[6], ARGV[10])
  if not new and ARGV[10] ~= '' then  -- the platform was faster: it gave no reason
    local words = redis.call('HGET', deliveries, said) or ''
    if string.match(words, '^%S+ %d+ %d+ %S+ $') then redis.call('HSET', deliveries, said, words .. ARGV[10]) end
  end
  if doubtful and new then put_aside(shard .. ':ambiguous', aside) end
  if ARGV[7] ~= '0' then redis.call('HSET', lane, 'chat', math.max(now(), number('chat')) + ARGV[7]) end
  if asks and mark == '' then
    show(asked, number('received'), ARGV[9])
    note_prompt(asked, ARGV[6])
  end
  if asks then note_asking(said, asked) end
  redis.call('HSET', lane, 'newest', asks and mark == '' and asked or '')
  if pid ~= '-' then
    note_shows(asked, copy or '')  -- of one that was sent twice, the platform has told of the first
    note_shows(asked, ARGV[6])
  end
  if string.find(redis.call('HGET', deliveries, said), '^failed ') then unasked(said) end  -- said before we were
else
  note(said, 'dead', aside.tries, '', ARGV[6])
  aside.reason, aside.asks, aside.doubtful, aside.entry = ARGV[6], asks, doubtful, entry
  put_aside(shard .. ':dead', aside)
  if ARGV[5] == 'limited' then silence(now() + ARGV[7]) end
  if ARGV[5] == 'closed' then close(ARGV[6]) end
  if asks and redis.call('HGET', record(asked), 'state') == 'armed' then enter(asked, {'expired'}) end
end
return {'ok', next_work(ARGV[8], ARGV[2], ARGV[3])}
