-- Close the window sooner, never later. ARGV: conversation, user, expected action or '', milliseconds.
local pid = redis.call('GET', live(ARGV[2]))
if not pid or (ARGV[3] ~= '' and ARGV[3] ~= pid) then return {} end
local key = record(pid)
local expires = tonumber(redis.call('HGET', key, 'expires') or '0')
if redis.call('HGET', key, 'state') ~= 'shown' or now() >= expires then return {} end
redis.call('HSET', key, 'expires', math.min(expires, now() + ARGV[4]))
return pending(pid)
