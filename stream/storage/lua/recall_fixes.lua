-- KEYS: two hashes that take turns, fingerprint of the feed's user key; ARGV: fingerprint of the caller's, life (ms), pseudonyms
-- Returns what keep_fixes.lua stored of each user, or nil; an error if the feed is bound to another user key.
local claimed = redis.call('GET', KEYS[3])
if claimed and claimed ~= ARGV[1] then return redis.error_reply('OTHERKEY the feed is bound to another user key') end
local clock = redis.call('TIME')
local turn = math.floor((clock[1] * 1000 + math.floor(clock[2] / 1000)) / tonumber(ARGV[2]))
local newer, older = KEYS[turn % 2 + 1], KEYS[(turn + 1) % 2 + 1]
local fixes = {}
for i = 3, #ARGV do
  fixes[i - 2] = redis.call('HGET', newer, ARGV[i]) or redis.call('HGET', older, ARGV[i])
end
return fixes
