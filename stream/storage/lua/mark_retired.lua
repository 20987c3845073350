local before = redis.call('GET', KEYS[1])
if not before or tonumber(before) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return redis.call('GET', KEYS[1])
