-- needs: actions
-- Check whether a question waits for this user's answer, or this event was received before.
-- args: user, event (the digest of its id).
return redis.call('EXISTS', open_action_key(args.user), shard .. ':event:' .. conversation .. ':' .. args.event)
