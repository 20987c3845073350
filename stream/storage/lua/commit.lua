-- Commits the bytes of a window, its number, and the feed's memory after it. The first writer wins; nothing is written after
-- the window was released.
-- KEYS: outbox of the window, released windows, memory, charges of the window, number of windows of this feed committed, and of
--       all feeds of its ledger (the same key if it shares none), link to the last close marker of this feed, latest window that was
--       planned, windows set aside
-- ARGV: window, bytes, memory they were made with ('' = none), memory after them ('' = leave it), digest of the plan they
--       were drawn from, number that they carry, link that they continue ('' = none), link to their close marker
-- Returns an error if that plan is not paid for, because Redis was replaced by one that does not know its charges; and if another
-- window was planned last or this one was set aside, because windows are committed in the order of their time.
-- Every write sets a value and none increments one, so replaying the end of the log twice does not count twice.
-- Returns 1 if these bytes were committed; 0 if others were first; -1 if the window was released already; and 2, with nothing
-- written, if number, memory or link are not those that the bytes were made with: the caller makes new bytes.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  return -1
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
local planned = redis.call('GET', KEYS[8])
if planned and planned ~= ARGV[1] then
  return redis.error_reply('TURN ' .. planned)
end
if redis.call('HEXISTS', KEYS[9], ARGV[1]) == 1 then
  return redis.error_reply('TURN ' .. ARGV[1])
end
if redis.call('HGET', KEYS[4], 'plan') ~= ARGV[5] then
  return redis.error_reply('CHARGES of this window are gone')
end
if tonumber(redis.call('GET', KEYS[5]) or '0') + 1 ~= tonumber(ARGV[6]) then
  return 2
end
if (redis.call('GET', KEYS[7]) or '') ~= ARGV[7] then
  return 2
end
if ARGV[4] ~= '' then
  if (redis.call('GET', KEYS[3]) or '') ~= ARGV[3] then
    return 2
  end
  redis.call('SET', KEYS[3], ARGV[4])
end
if KEYS[6] ~= KEYS[5] then
  redis.call('SET', KEYS[6], tonumber(redis.call('GET', KEYS[6]) or '0') + 1)
end
redis.call('SET', KEYS[5], ARGV[6])
redis.call('SET', KEYS[7], ARGV[8])
redis.call('SET', KEYS[8], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1
