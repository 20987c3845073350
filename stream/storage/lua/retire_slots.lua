-- KEYS: progress, a hash of slots; ARGV: mark, cursor, slots of one call, how the names of their rows begin (in the
-- hash slot of KEYS), or nothing. Returns the next cursor.
local mark = tonumber(ARGV[1])
local before = redis.call('HGET', KEYS[1], 'mark')
if before and tonumber(before) < mark then redis.call('HSET', KEYS[1], 'mark', ARGV[1]) end
local page = redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
for i = 1, #page[2], 2 do
  local slot = page[2][i]
  if tonumber(slot) < mark then
    if ARGV[4] ~= '' then redis.call('UNLINK', ARGV[4] .. slot) end
    redis.call('HDEL', KEYS[2], slot)
  end
end
return page[1]
