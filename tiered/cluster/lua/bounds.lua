-- bounds.lua: one partition's share of the bounds, as a deal has it.
-- KEYS[1..9] as in books.lua
-- ARGV[1] number of the deal   ARGV[2] 1: the limits may only fall, 0: as given   ARGV[3] how many limits   then for each:
--   field, bytes, 1: but not below what is held by now, 0: below that too   then the other bounds: field, value
-- Returns each limit as it is now, in order; or {-1} if a later deal was here.
-- From now on a move of allotment that began under an earlier deal is refused (raise.lua), so that what the partitions
-- have between them is known. A limit that is not named is as low as the default one from now on, or lower as it was.

local number, only_falls, n_limits = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local before = {}
local flat = redis.call('HGETALL', limits)
for i = 1, #flat, 2 do before[flat[i]] = flat[i + 1] end
if (tonumber(before[':deal'] or '') or 0) > number then return {-1} end

local after, given, answers = {':deal', digits(number)}, {}, {}
local function put(field, value)
  after[#after + 1], after[#after + 2] = field, value
end

local function held(field)
  local names = field == ':capacity' and {'U', 'P'} or {'u:' .. field, 'p:' .. field}
  local found = redis.call('HMGET', usage, names[1], names[2])
  return (tonumber(found[1] or '') or 0) + (tonumber(found[2] or '') or 0)
end

for i = 4, 1 + 3 * n_limits, 3 do
  local field, bytes = ARGV[i], ARGV[i + 1]
  local was = before[field] or (field:sub(1, 1) ~= ':' and before['*'])
  if only_falls and ARGV[i + 2] == '1' and held(field) > tonumber(bytes) then bytes = digits(held(field)) end
  if only_falls and was and tonumber(was) < tonumber(bytes) then bytes = was end
  given[field] = tonumber(bytes)
  answers[#answers + 1] = bytes
  put(field, bytes)
end
for field, value in pairs(before) do
  -- No tenant's name holds a colon or a star: this is an allotment of a tenant that the default limit bounds.
  if only_falls and not field:find('[:*]') and not given[field] and given['*'] and tonumber(value) < given['*'] then
    put(field, value)
  end
end
for i = 4 + 3 * n_limits, #ARGV, 2 do put(ARGV[i], ARGV[i + 1]) end
redis.call('DEL', limits)
for i = 1, #after, 1000 do redis.call('HSET', limits, unpack(after, i, math.min(i + 999, #after))) end

-- Bounds have changed: every tenant that holds anything stands anew.
local tenants = {}
for _, field in ipairs(redis.call('HKEYS', usage)) do
  if field:sub(2, 2) == ':' then tenants[field:sub(3)] = true end
end
redis.call('DEL', standings)
for tenant in pairs(tenants) do
  redis.call('ZADD', standings, tostring(standing(account(tenant), 0)), tenant)
end
return answers
