-- KEYS: two hashes that take turns; ARGV: life (ms), pseudonyms. Returns what keep_fixes.lua stored of each user, or nil.
local clock = redis.call('TIME')
local turn = math.floor((clock[1] * 1000 + math.floor(clock[2] / 1000)) / tonumber(ARGV[1]))
local newer, older = KEYS[turn % 2 + 1], KEYS[(turn + 1) % 2 + 1]
local fixes = {}
for i = 2, #ARGV do
  fixes[i - 1] = redis.call('HGET', newer, ARGV[i]) or redis.call('HGET', older, ARGV[i])
end
return fixes
