-- KEYS: mark, feeds of the ledger; ARGV: boundary, feed. The mark moves to the least boundary of all feeds.
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then redis.call('HSET', KEYS[2], ARGV[2], ARGV[1]) end
local kept = redis.call('HGETALL', KEYS[2])
local least = tonumber(kept[2] or '0')
for i = 4, #kept, 2 do least = math.min(least, tonumber(kept[i])) end
local before = tonumber(redis.call('GET', KEYS[1]) or '0')
if before < least then redis.call('SET', KEYS[1], least) end
return redis.call('GET', KEYS[1])
