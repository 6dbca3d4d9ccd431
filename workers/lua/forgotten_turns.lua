-- needs: keys
-- Return which turns of a user the server does not know although it acknowledged them.
-- args: user, turns ([digest of the event id, time in ms], in order).
-- Returns {their places from 1, the language of the last answer here or ''}. Turns whose user was told what became of
-- them are left out.
local told, places = loss_key(), {}
local known_until = tonumber(redis.call('HGET', told, 'until:' .. args.user) or '0')
for place, turn in ipairs(args.turns) do
  local seen = redis.call('EXISTS', shard .. ':event:' .. conversation .. ':' .. turn[1])
  if seen == 0 and redis.call('HEXISTS', told, turn[1]) == 0 and turn[2] > known_until then
    places[#places + 1] = place
  end
end
return {places, redis.call('HGET', conversation_key, 'language') or ''}
