-- Records as JSON, with their version.

-- Return a record as JSON with its version at the end, where readers look for it.
local function encode_record(record)
  local version = record.v or RECORD_VERSION
  record.v = nil
  local text = string.sub(cjson.encode(record), 1, -2) .. ',"v":' .. version .. '}'
  record.v = version
  return text
end

-- Return the record in a text. Raises OTHER_VERSION for one of a newer release, which a script must
-- neither read nor change.
local function decode_record(text)
  local record = cjson.decode(text)
  local version = record.v or 1
  if version > NEWEST_RECORD_VERSION then error('OTHER_VERSION ' .. version) end
  return record
end
