local recorded = redis.call('GET', KEYS[1])
if not recorded or recorded == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
