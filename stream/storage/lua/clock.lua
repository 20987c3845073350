return redis.call('TIME')
