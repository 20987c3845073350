-- KEYS: generation, birth of the feed, feeds of the ledger, budgets that they state ARGV: generation and birth if they
-- are new, feed, the budget that it states if it stated none or a higher one ('' = it states none)
redis.call('SET', KEYS[1], ARGV[1], 'NX')
if redis.call('HSETNX', KEYS[3], ARGV[3], 0) == 1 then redis.call('SET', KEYS[2], ARGV[2], 'NX') end
local known = tonumber(redis.call('HGET', KEYS[4], ARGV[3]))
if ARGV[4] ~= '' and (not known or tonumber(ARGV[4]) < known) then redis.call('HSET', KEYS[4], ARGV[3], ARGV[4]) end
