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
local USER, FIELD, ENTRY, AT_ONCE, ARGS = 28, 17, 21, 1000, 8
local progress = redis.call('HMGET', KEYS[1], 'offset', 'read', 'mark', 'event')
local stored = tonumber(progress[1])
if not stored then return {} end
if tonumber(ARGV[1]) ~= stored then return {stored} end
local read, retired = tonumber(progress[2] or '0'), tonumber(progress[3] or '0')

local function of(i, k) return ARGV[6 + ARGS * (i - 1) + k] end

-- Calls take(names, from) with the names of at most AT_ONCE records of a text, and the number of the first of them, from 0.
local function each(text, record, length, take)
  local n = #text / record
  for from = 0, n - 1, AT_ONCE do
    local names = {}
    for at = from, math.min(from + AT_ONCE, n) - 1 do names[at - from + 1] = string.sub(text, at * record + 1, at * record + length) end
    take(names, from)
  end
end

local n, verdicts, answer, heads, uppers = (#ARGV - 6) / ARGS, {'stored'}, {'known'}, {}, {}
for i = 1, n do
  local slot, deadline, key = of(i, 1), of(i, 2), KEYS[3 + i]
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
    if kind == 'hash' and of(i, 5) ~= '' then return {slot, 'sums'} end
    if kind == 'list' and of(i, 5) == '' then return {slot, 'rows'} end
    if of(i, 5) == '' then
      local upper = math.max(tonumber(ARGV[5]), tonumber(redis.call('HGET', key, 'upper') or '0'))
      local most = math.min(tonumber(ARGV[6]), math.floor(2 ^ 53 / math.max(upper, 1) ^ 2))
      local after, differing = {}, {}
      each(of(i, 6), USER, 8, function(names, from)
        for k, head in ipairs(redis.call('HMGET', key, unpack(names))) do
          local first, last, events = struct.unpack('<i8i8I4', of(i, 6), (from + k - 1) * USER + 9)
          if head then
            local before, counted = struct.unpack('<i8I4', head)
            events = counted + events
            if first <= before or events > most then differing[#differing + 1] = names[k] .. head end
          elseif events > most then
            differing[#differing + 1] = names[k] .. struct.pack('<i8I4', 0, 0)
          end
          after[#after + 1], after[#after + 2] = names[k], struct.pack('<i8I4', last, events)
        end
      end)
      if #differing > 0 then
        for _, part in ipairs({slot, most, table.concat(differing)}) do answer[#answer + 1] = part end
      end
      heads[i], uppers[i] = after, upper
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

for i = 1, n do
  local key = KEYS[3 + i]
  if verdicts[1 + i] == 0 then
    if heads[i] then
      redis.call('HSET', key, 'upper', string.format('%.0f', uppers[i]))
      for from = 1, #heads[i], 2 * AT_ONCE do
        redis.call('HSET', key, unpack(heads[i], from, math.min(from + 2 * AT_ONCE - 1, #heads[i])))
      end
      local fields, entries, at = of(i, 7), of(i, 8), 1
      each(fields, FIELD, 16, function(names, from)
        local changed = {}
        for k, known in ipairs(redis.call('HMGET', key, unpack(names))) do
          local length = string.byte(fields, (from + k) * FIELD) * ENTRY
          local given = string.sub(entries, at, at + length - 1)
          at = at + length
          changed[#changed + 1], changed[#changed + 2] = names[k], known and added(known, given) or given
        end
        redis.call('HSET', key, unpack(changed))
      end)
    else
      redis.call('RPUSH', key, of(i, 5))
    end
    redis.call('HSETNX', KEYS[2], of(i, 1), of(i, 4))
  end
end
move(KEYS[1], stored, ARGV[2], read, ARGV[4], progress[4], ARGV[3])
return verdicts
