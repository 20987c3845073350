-- The bytes of a window, first writer wins; none after the window was released and cleaned up.
-- KEYS: outbox of the window, released windows.  ARGV: window, bytes
-- Returns {1 if these bytes were taken, the committed bytes}, or {} where the window was released already.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  return {}
end
local first = redis.call('SET', KEYS[1], ARGV[2], 'NX') and 1 or 0
return {first, redis.call('GET', KEYS[1])}
