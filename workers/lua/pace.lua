-- Say how fast a channel sends, and book the first reply's slot. ARGV: conversation, epoch, token, reply number,
-- milliseconds between two messages of the channel. Returns in how many milliseconds it may go out, or -2.
if not holds(ARGV[2], ARGV[3]) then return -2 end
local pace = channel_pace()
redis.call('HSET', pace, 'gap', ARGV[5])
redis.call('PEXPIRE', pace, math.max(KEEP_PACE, redis.call('PTTL', pace)))
return booked(ARGV[4])
