-- KEYS: as below, then sealed; ARGV: window. The seal first, the names second; see stream/storage/row_store.py.
redis.call('SADD', KEYS[4], ARGV[1])
return {redis.call('HGETALL', KEYS[1]), redis.call('HKEYS', KEYS[2]), redis.call('SMEMBERS', KEYS[3])}
