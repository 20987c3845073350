if redis.call('HGET', KEYS[1], 'offset') == ARGV[1] then redis.call('HSET', KEYS[1], 'offset', ARGV[2]) end
