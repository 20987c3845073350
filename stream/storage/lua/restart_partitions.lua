-- KEYS: opened; ARGV: partition, offset, … A name that this shard lost is put back.
for i = 1, #ARGV, 2 do
  local note = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  local space = string.find(note, ' ', 1, true)
  if not space then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1] .. ' ')
  elseif tonumber(string.sub(note, 1, space)) < tonumber(ARGV[i + 1]) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1] .. string.sub(note, space))
  end
end
