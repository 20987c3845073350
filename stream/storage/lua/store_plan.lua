-- KEYS: plan of the window, latest window that was planned, windows set aside, released windows; ARGV: window, plan,
-- how the names of plans and of committed bytes begin (in the hash slot of KEYS). Returns the plan that is stored.
-- Windows are planned in the order of their time, each once the one before is committed or set aside.
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 1 then
  return redis.error_reply('RELEASED the window was released already')
end
local planned = redis.call('GET', KEYS[2])
if planned and tonumber(planned) > tonumber(ARGV[1]) then return redis.error_reply('TURN ' .. planned) end
local stored = redis.call('GET', KEYS[1])
if stored then return stored end
if planned and redis.call('EXISTS', ARGV[3] .. planned) == 1 and redis.call('EXISTS', ARGV[4] .. planned) == 0
    and redis.call('HEXISTS', KEYS[3], planned) == 0 then
  return redis.error_reply('TURN ' .. planned)
end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return ARGV[2]
