-- needs: actions, conversation, keys
-- The last step before the effect. ARGV: conversation, epoch ('' without a lane), token, action, attempt, record, MAC,
-- most attempts at one that may be repeated.
local key = action_key(ARGV[4])
if ARGV[2] ~= '' and not holds_lease(ARGV[2], ARGV[3]) then return 'lost' end
local state, rec, mac, attempt, idempotent, steps, by =
  unpack(redis.call('HMGET', key, 'state', 'rec', 'mac', 'attempt', 'idempotent', 'steps', 'by'))
if rec ~= ARGV[6] or mac ~= ARGV[7] then return 'tampered' end
if state == 'started' and attempt == ARGV[5] then return 'go' end
-- A plan has no effect of its own and its steps guard themselves: it may be taken up again however often.
local again = state == 'started' and (idempotent == '1' or steps)
if state ~= 'claimed' and not again then return 'no' end
if not steps and redis.call('HINCRBY', key, 'tries', 1) > tonumber(ARGV[8]) then return 'worn' end
redis.call('HSET', key, 'state', 'started', 'attempt', ARGV[5], 'begun', now())
entered(ARGV[4], {'started'}, by, mac)
return 'go'
