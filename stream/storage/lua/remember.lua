-- KEYS: released windows, committed bytes; ARGV: window, record of its release, bytes that were published. A Redis that
-- was set back since they were committed must not come to know of the release: it would no longer show what it has
-- lost.
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then return 1 end
if redis.call('GET', KEYS[2]) ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
