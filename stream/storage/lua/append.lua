-- Stores one batch of one partition, exactly once.
-- KEYS: offsets, watermarks, seen, read, slots, sealed, end of the periods that are retired, then one rows key per slot
-- ARGV: partition field, first offset, next offset, largest event time (µs, '' = none), append time of its last message (µs,
--       '' = lateness is not decided by it), whether its reader stored the partition before (1 or 0), then per slot: slot, deadline (µs, '' = none), blob of the rows appended by then,
--       blob of the offsets of all rows (int64 LE, not descending; the late ones come last; the rows of one message share its
--       offset, and are in one call)
-- Returns {appended rows, duplicate rows, late rows, late rows that were in time by the broker's timestamp}. If the batch begins
-- beyond the stored offset, nothing is written and {stored offset} is returned: Redis was set back, and the messages between
-- must be read again. The first batch of a partition may begin anywhere, unless its reader stored one before.
local ROW, OFFSET = 36, 8
local first, next_offset = tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or (ARGV[6] == '1' and 0) or first)
if first > stored then return {stored} end
local read = tonumber(redis.call('HGET', KEYS[4], ARGV[1]) or '0')
local retired = tonumber(redis.call('GET', KEYS[7]) or '0')
local appended, duplicates, late, skewed = 0, 0, 0, 0

local function below(offsets, limit)
  local low, high = 0, #offsets / OFFSET
  while low < high do
    local middle = math.floor((low + high) / 2)
    if struct.unpack('<i8', offsets, middle * OFFSET + 1) < limit then low = middle + 1 else high = middle end
  end
  return low
end

local n = (#ARGV - 6) / 4
for i = 1, n do
  local slot, deadline, blob, offsets = ARGV[4 * i + 3], ARGV[4 * i + 4], ARGV[4 * i + 5], ARGV[4 * i + 6]
  local known = 0
  if first < stored then known = below(offsets, stored) end
  local fresh = #offsets / OFFSET - known
  local in_time = math.max(0, #blob / ROW - known)
  duplicates = duplicates + known
  if in_time > 0 and deadline ~= '' and read > tonumber(deadline) then
    skewed = skewed + in_time
    in_time = 0
  elseif in_time > 0 and (tonumber(slot) < retired or redis.call('SISMEMBER', KEYS[6], slot) == 1) then
    in_time = 0
  end
  late = late + fresh - in_time
  if in_time > 0 then
    if known > 0 then blob = string.sub(blob, known * ROW + 1) end
    redis.call('RPUSH', KEYS[7 + i], blob)
    redis.call('ZADD', KEYS[5], slot, slot)
    appended = appended + in_time
  end
end
if next_offset > stored then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  if ARGV[5] ~= '' and tonumber(ARGV[5]) > read then redis.call('HSET', KEYS[4], ARGV[1], ARGV[5]) end
  if ARGV[4] ~= '' then
    local known = redis.call('HGET', KEYS[2], ARGV[1])
    if not known or tonumber(known) < tonumber(ARGV[4]) then
      local now = redis.call('TIME')
      redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
      redis.call('HSET', KEYS[3], ARGV[1], string.format('%d%06d', now[1], now[2]))
    end
  end
end
return {appended, duplicates, late, skewed}
