-- needs: standing
-- Load the standing yeses of a user.
--
-- args:
--   user   the id of the scope
-- returns: a list of JSON texts, in any order. Ended ones may be among them.
return redis.call('HVALS', standing_key(args.user))
