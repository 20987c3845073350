-- Charges of one window for some users: each user pays what this window's earlier charges did not pay yet, or is refused.
-- KEYS: ledger of the period, charges of this window so far, generation, released windows, number of windows committed,
--       terms of the period
-- ARGV: window, budget (µε), generation, windows known to be committed, digest of the plan that is paid for with these
--       users ('' = there are more), what charges may depend on ('counts', 'own' or 'histograms'), then user, charge, ...
-- The lowest budget ever given for a period is its budget. Histograms want a period in which none followed from counts.
-- Returns the users whose budget does not bear it; nothing is written for them. What was paid is never given back.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then
  return redis.error_reply('GENERATION the ledger is not the one this plan was made for')
end
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 1 then
  return redis.error_reply('RELEASED the window was released already')
end
if tonumber(redis.call('GET', KEYS[5]) or '0') < tonumber(ARGV[4]) then
  return redis.error_reply('SETBACK windows that were committed are gone')
end
if ARGV[6] == 'histograms' and redis.call('HEXISTS', KEYS[6], 'counts') == 1 then
  return redis.error_reply('TERMS charges of this period followed from counts')
end
local budget = tonumber(ARGV[2])
local lowest = tonumber(redis.call('HGET', KEYS[6], 'budget') or ARGV[2])
if lowest < budget then budget = lowest else redis.call('HSET', KEYS[6], 'budget', ARGV[2]) end
if ARGV[6] == 'counts' then redis.call('HSET', KEYS[6], 'counts', 1) end
local refused = {}
for i = 7, #ARGV, 2 do
  local user, charge = ARGV[i], tonumber(ARGV[i + 1])
  local due = charge - tonumber(redis.call('HGET', KEYS[2], user) or '0')
  if due > 0 then
    if tonumber(redis.call('HGET', KEYS[1], user) or '0') + due > budget then
      refused[#refused + 1] = user
    else
      redis.call('HINCRBY', KEYS[1], user, due)
      redis.call('HSET', KEYS[2], user, ARGV[i + 1])
    end
  end
end
if #refused == 0 and ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], 'plan', ARGV[5])
end
return refused
