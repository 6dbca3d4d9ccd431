-- needs: conversation, forwarded, keys, outbox, queue
-- Append a reply from another conversation to the outbox of this one, once.
--
-- args:
--   delivery   the id of the reply in the other conversation
--   ARGV[2]    the record of the reply
--   from ARGV[3]: the hash of the RQ job
-- returns: the number of the reply here, '' if too many replies wait here.
local earlier = earlier_answer()
if earlier then return earlier end
if redis.call('LLEN', outbox) >= MAX_FORWARDED_WAITING then return '' end

local was_expected = is_worker_expected()
local number = append_reply(ARGV[2])
keep_conversation()
if not was_expected then wake_worker(3) end
return remember_answer(number)
