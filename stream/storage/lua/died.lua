-- KEYS: deaths; ARGV: window. Returns how often the closing process died over it.
local slot, times = string.match(redis.call('GET', KEYS[1]) or '', '(%d+) (%d+)')
times = slot == ARGV[1] and times + 1 or 1
redis.call('SET', KEYS[1], string.format('%s %d', ARGV[1], times))
return times
