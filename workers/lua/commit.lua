-- Finish a turn, or several that were answered together. Changes everything or nothing.
-- ARGV: conversation, epoch, token, number of the turn, user, event id, change as JSON {replies: [{pid, reply}],
-- history?, move?, arms: [...], timers: [{id, at, what}], silenced: [id]}, number of the last turn, '1' to release
-- the lease when nothing is left.
if ended(ARGV[2], ARGV[3]) then return {'ok', {'idle'}} end
if not holds(ARGV[2], ARGV[3]) then return {'lost'} end
local seq = tonumber(ARGV[4])
if number('done') >= seq then return {'ok', next_work(ARGV[9], ARGV[2], ARGV[3])} end
local head = redis.call('LINDEX', inbox, 0)
if not head or tonumber(string.match(head, '^%d+')) ~= seq then return {'moved', view()} end
local change = cjson.decode(ARGV[7])
abandon_own(redis.call('GET', live(ARGV[5])), ARGV[6])
abandon_own(string.match(head, '^%d+ %d+ %S+ (%S+) '), ARGV[6])
local refused = obstacle(change)
if refused then return {refused, view()} end
if crowded(change) then return {'timers', view()} end
repeat  -- a loop, not arithmetic: after a resume numbers have gaps
  redis.call('LPOP', inbox)
  head = redis.call('LINDEX', inbox, 0)
until not head or tonumber(string.match(head, '^%d+')) > tonumber(ARGV[8])
redis.call('DEL', journal)
redis.call('HSET', lane, 'done', ARGV[8])
if number(stop_of(ARGV[5])) <= tonumber(ARGV[8]) then redis.call('HDEL', lane, stop_of(ARGV[5])) end
apply(change)
forget_settled(ARGV[5])
if change.history then redis.call('SET', history(ARGV[5]), change.history, 'PX', KEEP) end
for _, id in ipairs(change.silenced) do drop_timer(id) end
for _, one in ipairs(change.timers) do set_timer(one.id, one.at, one.what) end
for _, reply in ipairs(change.replies) do say(reply.pid, reply.reply) end
return {'ok', next_work(ARGV[9], ARGV[2], ARGV[3])}
