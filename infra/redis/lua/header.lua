-- Every script begins with this. KEYS[1]: the prefix of the shard's keys; KEYS[2]: its write counter.
-- ARGV[1]: the named arguments as JSON. Among them are `conversation`, '-' for a script about the
-- whole shard, and `watermark`, the highest write counter of the shard that the caller has seen.
local shard, args = KEYS[1], cjson.decode(ARGV[1])
local conversation = args.conversation
