-- KEYS: progress, sealed, and slots if the topic no longer has the partition
-- ARGV: window, offset that the partition must have stored up to ('' = any), whether its beginning is noted
-- Returns whether the partition takes no more rows of the window. Without a row of it, one that is gone needs no seal.
if KEYS[3] and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return 1 end
local offset = redis.call('HGET', KEYS[1], 'offset')
if not offset and (ARGV[3] == '1' or ARGV[2] ~= '') then return 0 end
if ARGV[2] ~= '' and tonumber(offset) < tonumber(ARGV[2]) then return 0 end
local now = redis.call('TIME')
redis.call('HSETNX', KEYS[2], ARGV[1], string.format('%d%06d', now[1], now[2]))
return 1
