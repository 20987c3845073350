-- Adds one piece of a batch of one partition to the sums of its windows, exactly once. All keys are of this partition.
-- KEYS: progress, slots, sealed, then one key per slot of what is stored of it
-- ARGV: first offset, next offset, largest event time (µs, '' = none), append time of the last message (µs, '' = lateness is not decided
--       by it), U in quanta, most events of a user, then per slot: slot, deadline (µs, '' = none), number of rows appended by then, offset
--       of the first of these, rows of a window that holds rows ('' = it holds sums), users, fields and entries as
--       stream/storage/stored_sums.py packs them
-- Returns, with nothing written: {} if the partition was not opened; {stored offset} unless the piece begins there; {slot, form} if the
-- window holds 'rows' or 'sums', and the other was given; {'known', slot, most events, users with their time and events, …} if some of
-- these users' events do not all count. Once the piece is stored: {'stored', per slot: 0, 1 if its rows were late, 2 if they were in
-- time by the broker's timestamp}.
-- Every write sets a value and none increments one, so replaying the end of the log twice does not add twice.
local USER, FIELD, ENTRY, AT_ONCE, ARGS = 57, 17, 21, 1000, 8
-- Of a user: time of the last event that counts, number of these, cell without its last two digits and these digits, sums of this pair.
local LATEST = '<i8I4c9I4i8i8'
-- Given of a user, after their name: time of the first event that counts in the piece, and the same.
local GIVEN = '<i8i8I4c9I4i8i8'
local progress = redis.call('HMGET', KEYS[1], 'offset', 'read', 'mark', 'event')
local stored = tonumber(progress[1])
if not stored then return {} end
if tonumber(ARGV[1]) ~= stored then return {stored} end
local read, retired = tonumber(progress[2] or '0'), tonumber(progress[3] or '0')

local function of(i, k) return ARGV[6 + ARGS * (i - 1) + k] end

local n, verdicts, answer = (#ARGV - 6) / ARGS, {'stored'}, {'known'}
local uppers, users, left = {}, {}, {}  -- what is written of each slot: its bound, its users, and entries of pairs that users left

-- Reads the users of slot i: what they are afterwards, and those whose events do not all count.
local function read_users(i, key, most)
  local text, after, differing, gone = of(i, 6), {}, {}, {}
  local count = #text / USER
  for from = 0, count - 1, AT_ONCE do
    local names = {}
    for at = from, math.min(from + AT_ONCE, count) - 1 do names[at - from + 1] = string.sub(text, at * USER + 1, at * USER + 8) end
    for k, known in ipairs(redis.call('HMGET', key, unpack(names))) do
      local at = (from + k - 1) * USER + 1
      local first, last, events, where, samples, sum, squares = struct.unpack(GIVEN, text, at + 8)
      if known then
        local before, counted, there, more, plus, squared = struct.unpack(LATEST, known)
        events = counted + events
        if first <= before then differing[#differing + 1] = names[k] .. string.sub(known, 1, 12) end
        if there == where then
          samples, sum, squares = samples + more, sum + plus, squares + squared
        else
          gone[names[k] .. string.sub(there, 1, 8)] = string.sub(known, 21)
        end
      end
      if events > most and not (known and first <= struct.unpack('<i8', known)) then
        differing[#differing + 1] = names[k] .. (known and string.sub(known, 1, 12) or struct.pack('<i8I4', 0, 0))
      end
      local place = 2 * (from + k) - 1
      after[place], after[place + 1] = names[k], struct.pack(LATEST, last, events, where, samples, sum, squares)
    end
  end
  return after, gone, table.concat(differing)
end

for i = 1, n do
  local slot, deadline, key, sums = of(i, 1), of(i, 2), KEYS[3 + i], of(i, 5) == ''
  local verdict = 0
  if of(i, 3) == '0' then
    verdict = 1
  elseif deadline ~= '' and read > tonumber(deadline) then
    verdict = 2
  elseif tonumber(slot) < retired or redis.call('HEXISTS', KEYS[3], slot) == 1 then
    verdict = 1
  end
  verdicts[1 + i] = verdict
  if verdict == 0 then
    local kind = redis.call('TYPE', key).ok
    if kind == 'hash' and not sums then return {slot, 'sums'} end
    if kind == 'list' and sums then return {slot, 'rows'} end
    if sums then
      local upper = math.max(tonumber(ARGV[5]), tonumber(redis.call('HGET', key, 'upper') or '0'))
      local most, differing = math.min(tonumber(ARGV[6]), math.floor(2 ^ 53 / math.max(upper, 1) ^ 2))
      uppers[i] = upper
      users[i], left[i], differing = read_users(i, key, most)
      if differing ~= '' then
        for _, part in ipairs({slot, most, differing}) do answer[#answer + 1] = part end
      end
    end
  end
end
if #answer > 1 then return answer end

-- Entries of one field, the given ones first: where a user was last, they are likely to be again.
local function added(known, given)
  local fresh, rest = {}, known
  for at = 1, #given, ENTRY do
    local digits, place = string.byte(given, at), 1
    while place <= #rest and string.byte(rest, place) ~= digits do place = place + ENTRY end
    if place > #rest then
      fresh[#fresh + 1] = string.sub(given, at, at + ENTRY - 1)
    else
      local samples, sum, squares = struct.unpack('<I4i8i8', rest, place + 1)
      local more, plus, squared = struct.unpack('<I4i8i8', given, at + 1)
      fresh[#fresh + 1] = struct.pack('<BI4i8i8', digits, samples + more, sum + plus, squares + squared)
      rest = string.sub(rest, 1, place - 1) .. string.sub(rest, place + ENTRY)
    end
  end
  fresh[#fresh + 1] = rest
  return table.concat(fresh)
end

local function write(key, pairs_of)
  for from = 1, #pairs_of, 2 * AT_ONCE do redis.call('HSET', key, unpack(pairs_of, from, math.min(from + 2 * AT_ONCE - 1, #pairs_of))) end
end

-- Adds the given pairs of slot i, and those that users left, to their fields.
local function write_fields(i, key)
  local fields, entries, at, names, given = of(i, 7), of(i, 8), 1, {}, left[i]
  for name in pairs(given) do names[#names + 1] = name end
  for from = 1, #fields, FIELD do
    local name, length = string.sub(fields, from, from + 15), string.byte(fields, from + 16) * ENTRY
    local more = string.sub(entries, at, at + length - 1)
    at = at + length
    if given[name] then
      more = added(given[name], more)
    else
      names[#names + 1] = name
    end
    given[name] = more
  end
  for from = 1, #names, AT_ONCE do
    local changed, to = {}, math.min(from + AT_ONCE - 1, #names)
    for k, known in ipairs(redis.call('HMGET', key, unpack(names, from, to))) do
      local name = names[from + k - 1]
      changed[#changed + 1], changed[#changed + 2] = name, known and added(known, given[name]) or given[name]
    end
    write(key, changed)
  end
end

for i = 1, n do
  local key = KEYS[3 + i]
  if verdicts[1 + i] == 0 then
    if users[i] then
      write(key, {'upper', string.format('%.0f', uppers[i])})
      write(key, users[i])
      write_fields(i, key)
    else
      redis.call('RPUSH', key, of(i, 5))
    end
    redis.call('HSETNX', KEYS[2], of(i, 1), of(i, 4))
  end
end
move(KEYS[1], stored, ARGV[2], read, ARGV[4], progress[4], ARGV[3])
return verdicts
