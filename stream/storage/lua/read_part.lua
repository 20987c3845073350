-- KEYS: sealed, rows, and slots if the topic no longer has the partition; ARGV: window, number of its first blob, least
-- bytes, and most blobs. Returns the seal, whether these are the last blobs, and the blobs; nothing if the window is
-- not sealed.
local seal = redis.call('HGET', KEYS[1], ARGV[1])
if not seal then
  if KEYS[3] and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return {'', 1} end
  return {}
end
local answer, size, at, step = {seal, 0}, 0, tonumber(ARGV[2]), 1
while size < tonumber(ARGV[3]) and at - tonumber(ARGV[2]) < tonumber(ARGV[4]) do
  local blobs = redis.call('LRANGE', KEYS[2], at, at + step - 1)
  for _, blob in ipairs(blobs) do
    answer[#answer + 1] = blob
    size = size + #blob
  end
  at = at + #blobs
  if #blobs < step then
    answer[2] = 1
    break
  end
  -- After a quiet night, blobs may be a thousand times as long as those before.
  step = math.min(2 * step, 16, math.max(1, math.floor((tonumber(ARGV[3]) - size) * (#answer - 2) / size)))
end
return answer
