-- needs: channel, deliveries, outbox
-- List what became of the last replies of a conversation.
--
-- returns: JSON with `deliveries` (an object by the numbers of replies: `state`, `at`, `attempts`,
--   `receipt` and `reason`), `closed_reason` (why the address takes no messages, '' if it takes
--   them) and `held`, absent unless a reply waits for the user to write (`number`, `since`,
--   `reason`).
local by_number = {}
local all = redis.call('HGETALL', deliveries)
for at = 1, #all, 2 do
  by_number[all[at]] = parse_delivery(all[at + 1])
end
return cjson.encode({
  deliveries = by_number,
  closed_reason = closed_reason(),
  held = current_hold(),
})
