-- One consumed batch of one partition into state, exactly once.
-- KEYS: offsets, watermarks, seen, slots, sealed, then one rows key per slot
-- ARGV: partition field, first offset, next offset, now (µs), largest event time (µs, '' = none),
--       then per slot: slot, blob of rows, blob of their offsets (int64 LE, ascending)
-- Returns {appended, duplicate rows, late rows}, or {stored offset} with nothing written where the batch begins beyond
-- it: Redis was set back, and what lies between must be read again. A partition never seen begins where its batch does.
local ROW, OFFSET = 36, 8
local first, next_offset = tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or first)
if first > stored then return {stored} end
local appended, duplicates, late = 0, 0, 0

local function below(offsets, limit)
  local low, high = 0, #offsets / OFFSET
  while low < high do
    local middle = math.floor((low + high) / 2)
    if struct.unpack('<i8', offsets, middle * OFFSET + 1) < limit then low = middle + 1 else high = middle end
  end
  return low
end

local n = (#ARGV - 5) / 3
for i = 1, n do
  local slot, blob, offsets = ARGV[3 * i + 3], ARGV[3 * i + 4], ARGV[3 * i + 5]
  local known = 0
  if first < stored then known = below(offsets, stored) end
  local fresh = #offsets / OFFSET - known
  duplicates = duplicates + known
  if fresh > 0 then
    if redis.call('SISMEMBER', KEYS[5], slot) == 1 then
      late = late + fresh
    else
      if known > 0 then blob = string.sub(blob, known * ROW + 1) end
      redis.call('RPUSH', KEYS[5 + i], blob)
      redis.call('ZADD', KEYS[4], slot, slot)
      appended = appended + fresh
    end
  end
end
if next_offset > stored then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  -- Refused messages alone do not keep a partition alive: a source of rubbish must not hold windows open for ever.
  if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
    local known = redis.call('HGET', KEYS[2], ARGV[1])
    if not known or tonumber(known) < tonumber(ARGV[5]) then redis.call('HSET', KEYS[2], ARGV[1], ARGV[5]) end
  end
end
return {appended, duplicates, late}
