-- KEYS: progress, sealed; ARGV: offset, opener, mark, windows
-- If the partition was not prepared by the opener that is noted, its shard lost it.
if redis.call('HEXISTS', KEYS[1], 'offset') == 1 then return end
if redis.call('HGET', KEYS[1], 'opener') ~= ARGV[2] then
  redis.call('DEL', KEYS[2])
  local now = redis.call('TIME')
  for i = 4, #ARGV do redis.call('HSET', KEYS[2], ARGV[i], string.format('%d%06d', now[1], now[2])) end
end
redis.call('HSET', KEYS[1], 'offset', ARGV[1], 'mark', ARGV[3])
