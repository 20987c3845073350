-- The bytes of a window and the feed's memory after it, first writer wins for both; none after the window was released.
-- KEYS: outbox of the window, released windows, memory, charges of the window
-- ARGV: window, bytes, memory they were made with ('' = none), memory after them ('' = leave it), users charged for them
-- An error where charges that the draw rests on are gone: Redis was replaced by one that does not know them.
-- Returns {1, these bytes} where they were taken, {0, the committed bytes} where others were first, {} where the window
-- was released already, and {2} with nothing written where the memory moved meanwhile: make the bytes again from it.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  return {}
end
local first = redis.call('GET', KEYS[1])
if first then
  return {0, first}
end
if redis.call('HLEN', KEYS[4]) < tonumber(ARGV[5]) then
  return redis.error_reply('CHARGES of this window are gone')
end
if ARGV[4] ~= '' then
  if (redis.call('GET', KEYS[3]) or '') ~= ARGV[3] then
    return {2}
  end
  redis.call('SET', KEYS[3], ARGV[4])
end
redis.call('SET', KEYS[1], ARGV[2])
return {1, ARGV[2]}
