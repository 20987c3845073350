-- KEYS: feeds of the ledger, budgets that they state, birth of the feed, its sealed, released and set-aside windows
-- ARGV: feed, then how the keys of what its windows were charged and of its committed bytes begin; they are in the hash
-- slot of KEYS Returns nothing if the feed did not join; else its windows that are charged or committed and not
-- released. It leaves if there are none. A plan that nobody has paid for holds nothing: its charge is checked like any
-- other, whenever it comes, and it may be one that never can be charged.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
local waiting, cursor = {}, '0'
repeat
  local part = redis.call('SSCAN', KEYS[4], cursor, 'COUNT', 1000)
  cursor = part[1]
  for _, slot in ipairs(part[2]) do
    if redis.call('HEXISTS', KEYS[5], slot) == 0 and redis.call('HEXISTS', KEYS[6], slot) == 0
      and redis.call('EXISTS', ARGV[2] .. slot, ARGV[3] .. slot) > 0 then
      waiting[#waiting + 1] = slot
    end
  end
until cursor == '0'
if #waiting == 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('DEL', KEYS[3])
end
return waiting
