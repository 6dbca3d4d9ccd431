-- Take a shown action exactly once. ARGV: conversation, epoch ('' without a lane), token, action, deciding act,
-- 'text' or 'tap', record, MAC, seq of the turn. Returns {verdict, state}.
local fenced, key = ARGV[2] ~= '', record(ARGV[4])
if fenced and not holds(ARGV[2], ARGV[3]) then return {'lost', ''} end
local state = redis.call('HGET', key, 'state')
if not state then return {'gone', ''} end
local mine = redis.call('HGET', key, 'by') == ARGV[5]
if (state == 'claimed' or state == 'started') and mine then return {'mine', state} end
if state ~= 'shown' then return {'other', state} end
if redis.call('HGET', key, 'rec') ~= ARGV[7] or redis.call('HGET', key, 'mac') ~= ARGV[8] then
  return {'tampered', state}
end
local at = now()
if fenced then
  local seq, received = string.match(redis.call('LINDEX', inbox, 0) or '', '^(%d+) (%d+) ')
  if seq ~= ARGV[9] then return {'moved', state} end
  at = tonumber(received)  -- a yes sent in time counts, however late it is worked on
end
if at >= tonumber(redis.call('HGET', key, 'expires')) then
  redis.call('HSET', key, 'by', ARGV[5])
  set_state(ARGV[4], 'expired')
  return {'expired', 'expired'}
end
if fenced and ARGV[6] == 'text' and tonumber(ARGV[9]) <= tonumber(redis.call('HGET', key, 'seen')) then
  return {'early', state}  -- it was said before the preview was delivered: it answers something else
end
redis.call('HSET', key, 'by', ARGV[5])
set_state(ARGV[4], 'claimed')
return {'mine', 'claimed'}
