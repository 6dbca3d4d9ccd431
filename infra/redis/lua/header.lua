-- Every script begins with this, below the constants that it shares with Python.
--
-- KEYS[1] is the prefix of the shard's keys, KEYS[2] the key of its write counter. ARGV[1] holds
-- the named arguments as JSON. Among them is `watermark`, the highest write counter of the shard
-- that the caller has seen.
local shard = KEYS[1]
local args = cjson.decode(ARGV[1])
