-- One chunk of a plan's charges: all or nothing, once.
-- KEYS: ledger of the period, set of chunks already charged, generation
-- ARGV: chunk name, budget (µε), generation, then user, charge, user, charge, ...
-- Returns {"done"} or {"refused", user, ...}; nothing is written when anybody is refused.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then
  return redis.error_reply('GENERATION the ledger is not the one this plan was made for')
end
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then
  return {'done'}
end
local budget = tonumber(ARGV[2])
local refused = {'refused'}
for i = 4, #ARGV, 2 do
  local spent = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  if spent + tonumber(ARGV[i + 1]) > budget then
    refused[#refused + 1] = ARGV[i]
  end
end
if #refused > 1 then
  return refused
end
for i = 4, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('SADD', KEYS[2], ARGV[1])
return {'done'}
