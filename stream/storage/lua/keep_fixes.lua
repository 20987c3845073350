-- Keeps the fixes with which the next fix of a user is compared, whoever else keeps fixes of the same user.
-- KEYS: two hashes that take turns, fingerprint of the feed's user key
-- ARGV: fingerprint of the caller's, life (ms), least age of a reference (µs), most users, most fixes of a user, then per user:
--       pseudonym, fixes in order of time (32 bytes each, which begin with the time, int64 BE, µs)
-- What is stored is the union of what was stored and what is given, without what no later fix is compared with: fixes older than
-- the newest one that is a reference already. So calls may be repeated, and an older fix never replaces a newer one. A fix lives for
-- one life or two after the last write. Returns the number of users that had no room; an error if the feed is bound to another key.
local claimed = redis.call('GET', KEYS[3])
if claimed and claimed ~= ARGV[1] then return redis.error_reply('OTHERKEY the feed is bound to another user key') end
local FIX = 32
local life, least, users, most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local turn = math.floor(now / life)
local newer, older = KEYS[turn % 2 + 1], KEYS[(turn + 1) % 2 + 1]

local function add(fixes, times, text)
  for at = 1, #text, FIX do
    local time = struct.unpack('>i8', text, at)
    local place = #times + 1
    while place > 1 and times[place - 1] > time do place = place - 1 end
    if times[place - 1] ~= time then
      table.insert(times, place, time)
      table.insert(fixes, place, string.sub(text, at, at + FIX - 1))
    end
  end
end

local function succeeds(known, given)  -- no fix in known is compared with after those in given
  return string.sub(known, -FIX) == string.sub(given, 1, FIX)
    and struct.unpack('>i8', given, #given - FIX + 1) - struct.unpack('>i8', given) >= least
end

local function united(known, given)
  local fixes, times = {}, {}
  add(fixes, times, known)
  add(fixes, times, given)
  local first = #fixes
  while first > 1 and times[first] > times[#times] - least do first = first - 1 end
  if #fixes - first < most then return table.concat(fixes, '', first) end
  return fixes[first] .. table.concat(fixes, '', #fixes - most + 2)
end

-- Users who are known keep their room: at a change of turn they move. New ones have what is left of both hashes.
local room = users - redis.call('HLEN', newer) - redis.call('HLEN', older)
local refused = 0
for i = 6, #ARGV, 2 do
  local user, given = ARGV[i], ARGV[i + 1]
  local known = redis.call('HGET', newer, user)
  if not known then
    known = redis.call('HGET', older, user)
    if known then redis.call('HDEL', older, user) end
  end
  if known or room > 0 then
    if not known then
      room = room - 1
    elseif #known == 0 or #known % FIX ~= 0 then  -- damaged: what is given replaces it
    elseif known ~= given and not succeeds(known, given) then
      given = united(known, given)
    end
    redis.call('HSET', newer, user, given)
  else
    refused = refused + 1
  end
end
redis.call('PEXPIRE', newer, (turn + 2) * life - 1 - now)
return refused
