local birth = redis.call('GET', KEYS[1])
if not birth or tonumber(ARGV[1]) < tonumber(birth) then redis.call('SET', KEYS[1], ARGV[1]) end
