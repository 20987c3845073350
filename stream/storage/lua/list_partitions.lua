-- KEYS: partitions, seen, gone; ARGV: time (µs), then every partition of the topic
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('SADD', KEYS[3], name) end
redis.call('DEL', KEYS[1])
for i = 2, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[1])
  redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[1])
  redis.call('SREM', KEYS[3], ARGV[i])
end
