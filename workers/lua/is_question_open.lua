-- needs: actions, keys
-- Check whether a question waits for a user's answer, or an event was received before.
--
-- args:
--   user    the id of the scope
--   event   the digest of the event's id
-- returns: how many of the two are so, 0 for neither.
return redis.call('EXISTS', open_action_key(args.user), event_key(args.event))
