return {redis.call('HGET', KEYS[1], ARGV[1]), redis.call('GET', KEYS[2])}
