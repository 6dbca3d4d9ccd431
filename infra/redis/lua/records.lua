-- Records as JSON, with the version of their form.

-- Return a record as JSON with its version at the end, where readers look for it.
local function encode_record(record)
  local version = record.v or RECORD_VERSION
  record.v = nil
  local without_brace = string.sub(cjson.encode(record), 1, -2)
  record.v = version
  return without_brace .. ',"v":' .. version .. '}'
end

-- Return the record in a text. Raises OTHER_VERSION for one of a newer release, which a script must
-- neither read nor change.
local function decode_record(text)
  local record = cjson.decode(text)
  -- A record of version 1 names no version.
  local version = record.v or 1
  if version > NEWEST_RECORD_VERSION then error('OTHER_VERSION ' .. version) end
  return record
end
