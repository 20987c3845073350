-- Stores one batch of one partition, exactly once. All keys are of this partition.
-- KEYS: progress, slots, sealed, then one rows key per slot
-- ARGV: first offset, next offset, largest event time (µs, '' = none), append time of its last message (µs, '' = lateness is not
--       decided by it), then per slot: slot, deadline (µs, '' = none), blob of the rows appended by then, blob of the offsets of all
--       rows (int64 LE, not descending; the late ones come last; the rows of one message share its offset, and are in one call)
-- Returns {appended rows, duplicate rows, late rows, late rows that were in time by the broker's timestamp}. If the batch begins
-- beyond the stored offset, nothing is written and {stored offset} is returned: Redis was set back, and the messages between
-- must be read again. Returns {} if the partition was not opened.

-- Moves the partition to the next offset. Of progress, 'read' and the largest event time never fall.
local function move(key, stored, next_offset, read, arrived, known, largest)
  if tonumber(next_offset) <= stored then return end
  local changed = {'offset', next_offset}
  if arrived ~= '' and tonumber(arrived) > read then
    changed[3], changed[4] = 'read', arrived
  end
  if largest ~= '' and (not known or tonumber(known) < tonumber(largest)) then
    local now = redis.call('TIME')
    for _, part in ipairs({'event', largest, 'moved', string.format('%d%06d', now[1], now[2])}) do
      changed[#changed + 1] = part
    end
  end
  redis.call('HSET', key, unpack(changed))
end

local ROW, OFFSET = 36, 8
local progress = redis.call('HMGET', KEYS[1], 'offset', 'read', 'mark', 'event')
local first, stored = tonumber(ARGV[1]), tonumber(progress[1])
if not stored then return {} end
if first > stored then return {stored} end
local read, retired = tonumber(progress[2] or '0'), tonumber(progress[3] or '0')
local appended, duplicates, late, skewed = 0, 0, 0, 0

local function below(offsets, limit)
  local low, high = 0, #offsets / OFFSET
  while low < high do
    local middle = math.floor((low + high) / 2)
    if struct.unpack('<i8', offsets, middle * OFFSET + 1) < limit then low = middle + 1 else high = middle end
  end
  return low
end

local n = (#ARGV - 4) / 4
for i = 1, n do
  local slot, deadline, blob, offsets = ARGV[4 * i + 1], ARGV[4 * i + 2], ARGV[4 * i + 3], ARGV[4 * i + 4]
  local known = 0
  if first < stored then known = below(offsets, stored) end
  local fresh = #offsets / OFFSET - known
  local in_time = math.max(0, #blob / ROW - known)
  duplicates = duplicates + known
  if in_time > 0 and deadline ~= '' and read > tonumber(deadline) then
    skewed = skewed + in_time
    in_time = 0
  elseif in_time > 0 and (tonumber(slot) < retired or redis.call('HEXISTS', KEYS[3], slot) == 1) then
    in_time = 0
  end
  late = late + fresh - in_time
  if in_time > 0 then
    if known > 0 then blob = string.sub(blob, known * ROW + 1) end
    redis.call('RPUSH', KEYS[3 + i], blob)
    redis.call('HSETNX', KEYS[2], slot, string.format('%.0f', struct.unpack('<i8', offsets, known * OFFSET + 1)))
    appended = appended + in_time
  end
end
move(KEYS[1], stored, ARGV[2], read, ARGV[4], progress[4], ARGV[3])
return {appended, duplicates, late, skewed}
