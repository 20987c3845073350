-- Moves a partition to the next offset, at the end of a script that stored its batch. Of progress, 'read' and the largest event time
-- never fall.
local function move(key, stored, next_offset, read, arrived, known, largest)
  if tonumber(next_offset) <= stored then return end
  local changed = {'offset', next_offset}
  if arrived ~= '' and tonumber(arrived) > read then
    changed[3], changed[4] = 'read', arrived
  end
  if largest ~= '' and (not known or tonumber(known) < tonumber(largest)) then
    local now = redis.call('TIME')
    for _, part in ipairs({'event', largest, 'moved', string.format('%d%06d', now[1], now[2])}) do changed[#changed + 1] = part end
  end
  redis.call('HSET', key, unpack(changed))
end
