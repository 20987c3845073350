-- KEYS: progress, slots; ARGV: offset that the reader stored up to ('' = none), its position, time (µs), end of the
-- retired periods A position may lie beyond what was stored: marks of transactions take offsets. Returns {0, stored
-- offset} if the store knows less than the reader stored, with nothing written for it; {1, offset below which all rows
-- are of windows that are over}; or {} if the partition was not opened.
local known = redis.call('HMGET', KEYS[1], 'offset', 'read', 'mark')
local offset = tonumber(known[1])
if not offset then return {} end
if tonumber(known[3] or '0') < tonumber(ARGV[4]) then redis.call('HSET', KEYS[1], 'mark', ARGV[4]) end
if ARGV[1] ~= '' and offset < tonumber(ARGV[1]) then return {0, known[1]} end
if offset < tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], 'offset', ARGV[2]) end
if tonumber(known[2] or '0') < tonumber(ARGV[3]) then redis.call('HSET', KEYS[1], 'read', ARGV[3]) end
local least = math.max(offset, tonumber(ARGV[2]))
for _, first in ipairs(redis.call('HVALS', KEYS[2])) do least = math.min(least, tonumber(first)) end
return {1, string.format('%.0f', least)}
