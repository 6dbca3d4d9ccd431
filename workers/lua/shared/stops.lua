-- When a user said /stop.

-- Return the field of the conversation's record that holds the number of the last turn in which a
-- user said stop. It is deleted once the turns up to it are answered.
local function stop_field(user)
  return 'stop:' .. user
end
