-- cut.lua: take allotment of a tenant, or of the whole tier, out of this partition, for another one to have.
-- KEYS[1..9] as in books.lua
-- ARGV[1] tenant, or :capacity   ARGV[2] bytes asked for   ARGV[3] 1: the tenant's oldest blocks leave for it
-- Returns {bytes taken, number of the deal they are of}. Keeps I5: what is used or pending is never taken. What is taken
-- is nobody's until raise.lua has given it to another partition under the same deal; if that never happens, the next
-- deal gives it out again.

local field, asked = ARGV[1], tonumber(ARGV[2])
local number = redis.call('HGET', limits, ':deal') or '0'
local of = field == ':capacity' and whole() or account(field)
local limit = of.limit or of.capacity
if limit == math.huge then return {0, number} end

local function unused()
  return limit - of.used - of.pending
end

if ARGV[3] == '1' and not of.refuses then
  while unused() < asked do
    local hash, record = oldest(field)
    if not hash then break end
    let_go(field, hash, record, 'evicted', 'own limit', field)
  end
end
local taken = math.max(0, math.min(asked, unused()))
if taken > 0 then
  if field ~= ':capacity' then redis.call('HSETNX', limits, field, redis.call('HGET', limits, '*') or '0') end
  redis.call('HINCRBY', limits, field, digits(-taken))
end
close_books()
return {digits(taken), number}
