-- KEYS: windows set aside, oldest slot that may not be released yet, latest window that was planned; ARGV: window.
-- Returns whether it was set aside.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local planned = redis.call('GET', KEYS[3])
if planned and tonumber(planned) > tonumber(ARGV[1]) then return redis.error_reply('TURN ' .. planned) end
redis.call('HDEL', KEYS[1], ARGV[1])
local first = redis.call('GET', KEYS[2])
if first and tonumber(first) > tonumber(ARGV[1]) then redis.call('SET', KEYS[2], ARGV[1]) end
return 1
