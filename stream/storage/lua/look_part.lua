-- KEYS: progress, slots
return {redis.call('HMGET', KEYS[1], 'offset', 'read', 'event', 'moved'), redis.call('HKEYS', KEYS[2])}
