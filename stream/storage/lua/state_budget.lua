-- KEYS: feeds of the ledger, budgets that they state; ARGV: feed, budget, whether it replaces a lower one ('1') or not
-- ('0') A feed that did not join, or has left meanwhile, states nothing: it would bind the others for ever. Returns
-- whether it joined.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local known = tonumber(redis.call('HGET', KEYS[2], ARGV[1]))
local given = tonumber(ARGV[2])
if not known or given < known or (given > known and ARGV[3] == '1') then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
end
return 1
