-- Charges some users for one window. Each user pays what earlier charges of this window did not cover, or is refused.
-- KEYS: ledger of the period, charges of this window so far, generation, released windows, number of windows committed by all
--       feeds of the ledger, terms of the period, birth of the ledger, end of the periods that are retired, budgets that the
--       feeds of a shared ledger state, ledger and terms of the horizon's block, blocks that have charges, latest window of the feed
--       that was planned
-- ARGV: window, budget (µε), generation, windows known to be committed, digest of the plan that is paid for with these
--       users ('' = there are more), what charges may depend on ('counts', 'own' or 'histograms'), start of the
--       period, name of the ledger if feeds share it, start of the block (without a horizon: of the period), budget of the block
--       ('' = there is no horizon), name and end of the block, users with their charges: 'user charge user charge ... ' in one
--       text, since thousands of arguments cost client and server more than all else that is done with them
-- The budget of a period is the lowest one ever given for it, and so is that of a block. If feeds share the ledger, its first
-- charge fixes it, which has to give the least that any of them states then. Histograms need a period without charges that
-- depended on counts. A user pays from both budgets, or from none.
-- Every write sets a value and none increments one, so replaying the end of the log twice does not charge twice.
-- A user is named once in a call: what they paid before is read for all of them first.
-- Returns the users whose budgets do not cover the charge; nothing is written for them. What was paid is never given back.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then
  return redis.error_reply('GENERATION the ledger is not the one this plan was made for')
end
local birth = redis.call('GET', KEYS[7])
if not birth or tonumber(ARGV[9]) < tonumber(birth) then
  return redis.error_reply('UNBORN the period began before this ledger was born')
end
if tonumber(ARGV[7]) < tonumber(redis.call('GET', KEYS[8]) or '0') then
  return redis.error_reply('RETIRED what was spent in the period is deleted')
end
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 1 then
  return redis.error_reply('RELEASED the window was released already')
end
local planned = redis.call('GET', KEYS[13])
if planned and planned ~= ARGV[1] then
  return redis.error_reply('TURN ' .. planned)
end
local committed = redis.call('GET', KEYS[5]) or '0'
if tonumber(committed) < tonumber(ARGV[4]) then
  return redis.error_reply('SETBACK ' .. committed)
end
if ARGV[6] == 'histograms' and redis.call('HEXISTS', KEYS[6], 'counts') == 1 then
  return redis.error_reply('TERMS charges of this period followed from counts')
end
local known = redis.call('HGET', KEYS[6], 'budget')
if ARGV[8] ~= '' then
  local fixed = tonumber(known)
  if not fixed then
    for _, stated in ipairs(redis.call('HVALS', KEYS[9])) do fixed = math.min(fixed or tonumber(stated), tonumber(stated)) end
  end
  if fixed and fixed ~= tonumber(ARGV[2]) then return redis.error_reply('BUDGET the period has another budget') end
end
local refused, users, charges, named, n, read = {}, {}, {}, {}, 0, 0
for user, charge in string.gmatch(ARGV[13], '(%d+) (%d+) ') do
  if named[user] then return redis.error_reply('TWICE a user is named twice in one call') end
  named[user] = true
  n, read = n + 1, read + #user + #charge + 2
  users[n], charges[n] = user, charge
end
if read ~= #ARGV[13] then return redis.error_reply('UNREAD users and charges are not whole numbers') end
local budget = tonumber(ARGV[2])
local lowest = tonumber(known or ARGV[2])
if lowest < budget then budget = lowest else redis.call('HSET', KEYS[6], 'budget', ARGV[2]) end
if ARGV[6] == 'counts' then redis.call('HSET', KEYS[6], 'counts', 1) end
local block = tonumber(ARGV[10])
if block then
  local least = tonumber(redis.call('HGET', KEYS[11], 'budget') or ARGV[10])
  if least < block then block = least else redis.call('HSET', KEYS[11], 'budget', ARGV[10]) end
  redis.call('HSET', KEYS[12], ARGV[11], ARGV[12])
end
if #users > 0 then
  -- All are read at once and written at once, since a command costs more than what it does for one user.
  local paid, before = redis.call('HMGET', KEYS[2], unpack(users)), redis.call('HMGET', KEYS[1], unpack(users))
  local longer = block and redis.call('HMGET', KEYS[10], unpack(users)) or {}
  local spendings, payments, sums = {}, {}, {}
  for i, user in ipairs(users) do
    local due = tonumber(charges[i]) - tonumber(paid[i] or '0')
    if due > 0 then
      local spent = tonumber(before[i] or '0') + due
      local sum = tonumber(longer[i] or '0') + due
      if spent > budget or (block and sum > block) then
        refused[#refused + 1] = user
      else
        spendings[#spendings + 1], spendings[#spendings + 2] = user, string.format('%.0f', spent)
        payments[#payments + 1], payments[#payments + 2] = user, charges[i]
        sums[#sums + 1], sums[#sums + 2] = user, string.format('%.0f', sum)
      end
    end
  end
  if #spendings > 0 then redis.call('HSET', KEYS[1], unpack(spendings)) end
  if block and #sums > 0 then redis.call('HSET', KEYS[10], unpack(sums)) end
  if #payments > 0 then redis.call('HSET', KEYS[2], unpack(payments)) end
end
if #refused == 0 and ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], 'plan', ARGV[5])
end
return refused
