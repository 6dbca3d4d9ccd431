-- The audit log of a shard: one entry for each state that an action enters, and for each vote of
-- another person about it.
--
-- An entry is JSON. It names the hash of the entry before it (`prev`), so a removed or changed
-- entry shows. `n` is its number in the shard, `at` the time in Unix milliseconds, `pid` the id of
-- the action, `event` the state or 'voted', and `by` the id of the event that decided or voted. The
-- record of the action is not in the log: `body` is the record's MAC, which proves the record while
-- it is stored and tells nothing later.

-- Append an entry for each event of an action, in the same step as the change itself.
local function append_audit(action_id, events, decided_by_event, mac)
  local log = shard .. ':audit'
  local head = redis.call('GET', log .. ':head') or ''
  local last_number, last_hash = string.match(head, '^(%d+) (%x+)$')

  -- After a loss of data, the numbers of a new log begin above all that were ever given out.
  local number = tonumber(last_number or redis.call('GET', shard .. ':floor') or '0')
  local hash = last_hash or NO_HEAD

  local entries = {}
  for at, event in ipairs(events) do
    number = number + 1
    entries[at] = string.format(
      '{"n":%d,"at":%d,"pid":"%s","event":"%s","by":%s,"body":"%s","prev":"%s"}',
      number, now(), action_id, event, cjson.encode(decided_by_event), mac, hash)
    hash = redis.sha1hex(entries[at])
  end
  redis.call('SET', log .. ':head', string.format('%d %s', number, hash))

  -- A worker collects the entries into a ledger. Without a worker the log must not grow forever.
  local length = redis.call('RPUSH', log, unpack(entries))
  if length > MAX_AUDIT_ENTRIES then redis.call('LPOP', log, #entries) end
end
