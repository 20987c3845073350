return redis.call('MGET', unpack(KEYS))
