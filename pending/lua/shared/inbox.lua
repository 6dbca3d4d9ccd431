-- needs: keys
-- The inbox of a conversation: the turns that wait, the oldest one first.
--
-- An entry is the text "seq received_at user tapped_action_id turn": the number of the turn, when
-- it was received (in Unix milliseconds), the id of its user's scope, the id of the action whose
-- button it taps ('-' for none), and the turn as JSON.

-- Return the parts of an entry by name. The turn itself is not parsed. `tapped_action_id` is nil
-- for a turn that taps no button.
local function parse_turn(entry)
  local seq, received_at, user, tapped_action_id =
    string.match(entry, '^(%d+) (%d+) (%S+) (%S+) ')
  if tapped_action_id == '-' then tapped_action_id = nil end
  return {
    seq = tonumber(seq),
    received_at = tonumber(received_at),
    user = user,
    tapped_action_id = tapped_action_id,
  }
end

-- Append a turn to the inbox. `turn`: the parts of the entry by name, with '' as the
-- `tapped_action_id` of a turn that taps no button, and the turn itself as `json`.
local function append_to_inbox(turn)
  local tapped_action_id = turn.tapped_action_id
  if tapped_action_id == '' then tapped_action_id = '-' end
  redis.call('RPUSH', inbox, table.concat(
    {turn.seq, turn.received_at, turn.user, tapped_action_id, turn.json}, ' '))
end

-- Return the first turn that waits, as `parse_turn` does, with its `entry`. Return nil if none
-- waits.
local function first_turn()
  local entry = redis.call('LINDEX', inbox, 0)
  if not entry then return nil end

  local turn = parse_turn(entry)
  turn.entry = entry
  return turn
end

-- Return whether a message of a person waits. A turn in which the agent goes on after a decision is
-- no message: its person may have left since. Neither is a turn of a timer, nor one that another
-- conversation sent.
local function has_message()
  for _, entry in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
    local kind = string.match(entry, '"kind":"([%l_]+)"')
    if not NO_MESSAGE_KINDS[kind or ''] then return true end
  end
  return false
end
