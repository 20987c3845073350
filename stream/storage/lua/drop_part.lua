-- KEYS: slots, sealed, rows; ARGV: window, whether the topic has the partition. A row that comes again later is late.
redis.call('UNLINK', KEYS[3])
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[2] == '1' then
  local now = redis.call('TIME')
  redis.call('HSETNX', KEYS[2], ARGV[1], string.format('%d%06d', now[1], now[2]))
end
