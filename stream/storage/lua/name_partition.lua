-- KEYS: opened, sealed, released windows, end of the retired periods; ARGV: partition Returns the note, the mark, and
-- the windows that the partition seals as it begins: all that are sealed. Rows of a partition that was lost come again,
-- so it seals what is released only.
redis.call('HSETNX', KEYS[1], ARGV[1], '')
local note, sealed = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('SMEMBERS', KEYS[2])
if note ~= '' then
  local released = {}
  for _, slot in ipairs(sealed) do
    if redis.call('HEXISTS', KEYS[3], slot) == 1 then released[#released + 1] = slot end
  end
  sealed = released
end
return {note, redis.call('GET', KEYS[4]) or '0', sealed}
