-- raise.lua: more allotment for this partition: what was taken out of others, or what a deal adds.
-- KEYS[1..9] as in books.lua
-- ARGV[1] number of the deal it is of   then: field of a limit, bytes, ...
-- Returns 1, or 0 if another deal was here meanwhile: it has counted without those bytes, and they are nobody's.

if (redis.call('HGET', limits, ':deal') or '0') ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do
  local field, default = ARGV[i], redis.call('HGET', limits, '*')
  if default and field:sub(1, 1) ~= ':' then redis.call('HSETNX', limits, field, default) end
  if redis.call('HEXISTS', limits, field) == 1 then redis.call('HINCRBY', limits, field, ARGV[i + 1]) end
end
return 1
