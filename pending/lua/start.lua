-- needs: actions, conversation, states
-- Take the last step before the effect.
-- args: epoch and token (none without a lease), pid, attempt, mac.
-- ARGV[2]: the record.
local key = action_key(args.pid)
if args.epoch and not holds_lease() then return 'lost' end
local state, rec, mac, attempt, idempotent, steps, by =
  unpack(redis.call('HMGET', key, 'state', 'rec', 'mac', 'attempt', 'idempotent', 'steps', 'by'))
if rec ~= ARGV[2] or mac ~= args.mac then return 'tampered' end
if state == 'started' and attempt == args.attempt then return 'go' end
-- A plan has no effect of its own, and each step is checked by itself: a plan may be started any number of times.
local again = state == 'started' and (idempotent == '1' or steps)
if state ~= 'claimed' and not again then return 'no' end
if not steps and redis.call('HINCRBY', key, 'tries', 1) > MAX_STARTS then return 'worn' end
redis.call('HSET', key, 'state', 'started', 'attempt', args.attempt, 'begun', now())
entered(args.pid, {'started'}, by, mac)
return 'go'
