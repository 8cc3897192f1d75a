-- recount.lua: the books of a partition as its records have them, if nobody has written since those were read.
-- KEYS[1..9] as in books.lua
-- ARGV[1] the newest of KEYS[9], or ''   ARGV[2] how many fields KEYS[1] had   then for each: field, value
--   then for each tenant with blocks or with a field: tenant, bytes used, blocks
-- Returns 1 if the books were written, 0 if somebody has written or a reservation is under way. Keeps I5: whoever drops a
-- block or lets go of its part of one says so in KEYS[9]; without that a commit changes the sums for good, and who takes a
-- part of a block is on one list more than there are records. So what was read is what there is, and nothing is pending.
-- Cost: some 20 to 40 us for each tenant, in one piece; sums that a server has lost are seldom.

local REMOVED_MAX = 256

if (redis.call('LRANGE', why_list, 0, 0)[1] or '') ~= ARGV[1] then return 0 end
for _, hash in ipairs(redis.call('ZRANGEBYSCORE', reservations, '-inf', digits(now), 'LIMIT', 0, REMOVED_MAX)) do
  if read_record(meta_prefix .. hash)[STATE] ~= RESERVED then redis.call('ZREM', reservations, hash) end
end
if redis.call('ZCARD', reservations) > 0 then return 0 end
local n_fields = tonumber(ARGV[2])
local first_tenant = 3 + 2 * n_fields
if redis.call('HLEN', usage) ~= n_fields then return 0 end
for i = 3, first_tenant - 1, 2 do
  if redis.call('HGET', usage, ARGV[i]) ~= ARGV[i + 1] then return 0 end
end
for i = first_tenant, #ARGV, 3 do
  if redis.call('ZCARD', blocks_prefix .. ARGV[i]) ~= tonumber(ARGV[i + 2]) then return 0 end
end

local sum = 0
redis.call('DEL', usage, standings)
for i = first_tenant, #ARGV, 3 do
  local bytes = tonumber(ARGV[i + 1])
  if bytes > 0 then redis.call('HSET', usage, 'u:' .. ARGV[i], ARGV[i + 1]) end
  sum = sum + bytes
end
if sum > 0 then redis.call('HSET', usage, 'U', digits(sum)) end
for i = first_tenant, #ARGV, 3 do
  local of = account(ARGV[i])
  if of.used > 0 then redis.call('ZADD', standings, tostring(standing(of, 0)), ARGV[i]) end
end
return 1
