-- The last step before the effect. ARGV: conversation, epoch ('' without a lane), token, action, attempt, record, MAC.
local key = record(ARGV[4])
if ARGV[2] ~= '' and not holds(ARGV[2], ARGV[3]) then return 'lost' end
if redis.call('HGET', key, 'rec') ~= ARGV[6] or redis.call('HGET', key, 'mac') ~= ARGV[7] then return 'tampered' end
local state = redis.call('HGET', key, 'state')
if state == 'started' and redis.call('HGET', key, 'attempt') == ARGV[5] then return 'go' end
if state == 'claimed' or (state == 'started' and redis.call('HGET', key, 'idempotent') == '1') then
  redis.call('HSET', key, 'attempt', ARGV[5])
  set_state(ARGV[4], 'started')
  return 'go'
end
return 'no'
