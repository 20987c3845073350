-- KEYS: windows set aside, sealed windows, bytes of the window; ARGV: window, reason. Returns whether it is: what is
-- committed can only be published.
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('SADD', KEYS[2], ARGV[1])
return 1
