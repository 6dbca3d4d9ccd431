-- needs: actions, conversation, states
-- Start an action: the last step before its effect.
--
-- args:
--   epoch, token   of the worker's lease; absent without a lease
--   action_id
--   attempt_id     a random id of this start, the same if the call is repeated
--   mac            of the record that the caller verified
--   ARGV[2]        that record
-- returns: 'go', or why the effect must not begin: 'lost' (the lease), 'tampered' (the stored
--   record is another one), 'no' (the action is not claimed) or 'worn' (it was started MAX_STARTS
--   times).
local key = action_key(args.action_id)
if args.epoch and not holds_lease() then return 'lost' end

local state, record, mac, attempt_id, idempotent, steps, decided_by_event = unpack(redis.call(
  'HMGET', key, 'state', 'record', 'mac', 'attempt_id', 'idempotent', 'steps', 'decided_by_event'))
if record ~= ARGV[2] or mac ~= args.mac then return 'tampered' end
if state == 'started' and attempt_id == args.attempt_id then return 'go' end

-- A plan has no effect of its own, and each step is checked by itself: a plan may be started any
-- number of times.
local may_start_again = state == 'started' and (idempotent == '1' or steps)
if state ~= 'claimed' and not may_start_again then return 'no' end
if not steps and redis.call('HINCRBY', key, 'attempts', 1) > MAX_STARTS then return 'worn' end

redis.call('HSET', key, 'state', 'started', 'attempt_id', args.attempt_id, 'started_at', now())
entered(args.action_id, {'started'}, decided_by_event, mac)
return 'go'
