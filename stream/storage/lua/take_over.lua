-- Takes over what an earlier version stored of a feed, on one server, at once. It did not store of which partition a row is, so all of
-- a window's become rows of the first partition.
-- KEYS: offsets, watermarks, seen, read, slots, sealed, partitions, end of the retired periods, opened, windows set aside
-- ARGV: how the names of old rows begin, how the names of keys of partitions begin, what takes the place of offsets and rows, seconds
--       for which it stays in place of rows: an old worker that is about to read them fails instead of releasing what it read so far
-- Returns the number of windows with rows that were taken over; an error if partitions hold rows already.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then return 0 end
if kind == 'none' and redis.call('EXISTS', KEYS[5]) == 0 then
  redis.call('SET', KEYS[1], ARGV[3])
  return 0
end
local function key(partition, name) return ARGV[2] .. partition .. '}:' .. name end
for _, partition in ipairs(redis.call('HKEYS', KEYS[9])) do
  if redis.call('HLEN', key(partition, 'slots')) > 0 then return redis.error_reply('MIXED rows of two versions') end
end
local offsets, names, sealed = {}, {}, redis.call('SMEMBERS', KEYS[6])
local function known(hash, partition) return redis.call('HGET', hash, partition) end
if kind == 'hash' then
  local pairs_of = redis.call('HGETALL', KEYS[1])
  for i = 1, #pairs_of, 2 do
    names[#names + 1] = pairs_of[i]
    offsets[pairs_of[i]] = pairs_of[i + 1]
  end
end
table.sort(names)
if #names == 0 then return redis.error_reply('NAMELESS rows of no partition') end
local clock = redis.call('TIME')
local now = string.format('%d%06d', clock[1], clock[2])
for _, partition in ipairs(names) do
  local progress = key(partition, 'progress')
  redis.call('DEL', progress, key(partition, 'sealed'))
  redis.call('HSET', progress, 'offset', offsets[partition], 'mark', redis.call('GET', KEYS[8]) or '0')
  for field, hash in pairs({read = KEYS[4], event = KEYS[2], moved = KEYS[3]}) do
    local value = known(hash, partition)
    if value then redis.call('HSET', progress, field, value) end
  end
  for _, slot in ipairs(sealed) do redis.call('HSET', key(partition, 'sealed'), slot, now) end
  redis.call('HSET', KEYS[9], partition, '0 ')
end
local windows = 0
local function take(slot)
  local old = ARGV[1] .. slot
  if redis.call('TYPE', old).ok == 'list' then
    redis.call('RENAME', old, key(names[1], 'rows:' .. slot))
    redis.call('SET', old, ARGV[3], 'EX', ARGV[4])
    redis.call('HSET', key(names[1], 'slots'), slot, '0')
    windows = windows + 1
  end
end
for _, slot in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do take(slot) end
for _, slot in ipairs(sealed) do take(slot) end
for _, slot in ipairs(redis.call('HKEYS', KEYS[10])) do take(slot) end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[4], KEYS[5])
redis.call('SET', KEYS[1], ARGV[3])
return windows
