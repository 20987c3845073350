-- KEYS: progress, sealed; ARGV: opener, mark, windows. Returns who opens the partition; nothing if it has begun.
if redis.call('HEXISTS', KEYS[1], 'offset') == 1 then return nil end
redis.call('HSETNX', KEYS[1], 'opener', ARGV[1])
redis.call('HSETNX', KEYS[1], 'mark', ARGV[2])
local now = redis.call('TIME')
for i = 3, #ARGV do redis.call('HSETNX', KEYS[2], ARGV[i], string.format('%d%06d', now[1], now[2])) end
return redis.call('HGET', KEYS[1], 'opener')
