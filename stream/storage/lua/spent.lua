-- KEYS: ledger of the period, charges of a window; ARGV: users, in one text Returns what each spent, and what of it in
-- the window, read at the same moment; an empty list where nobody was charged.
local users, answer = {}, {}
for user in string.gmatch(ARGV[1], '%d+') do users[#users + 1] = user end
for i, key in ipairs(KEYS) do
  answer[i] = redis.call('EXISTS', key) == 1 and redis.call('HMGET', key, unpack(users)) or {}
end
return answer
