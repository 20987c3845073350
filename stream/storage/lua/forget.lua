-- KEYS: released windows, then what is deleted; ARGV: window. A Redis that was set back to before the record of the
-- release has the bytes alone to show for it, and would have the window drawn again without them.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then redis.call('UNLINK', unpack(KEYS, 2)) end
