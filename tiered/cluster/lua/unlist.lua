-- unlist.lua: take out of a tenant's sorted set those of some blocks that it is not charged for: their records were lost.
-- KEYS[1..9] as in books.lua, then the meta of each block
-- ARGV[1] tenant   then for each block: hash
-- Returns how many it took out.

local gone = {}
for i = 2, #ARGV do
  local record = read_record(meta_prefix .. ARGV[i])
  if record[STATE] ~= COMMITTED or not index_of(record[TENANTS], ARGV[1]) then gone[#gone + 1] = ARGV[i] end
end
return #gone > 0 and redis.call('ZREM', blocks_prefix .. ARGV[1], unpack(gone)) or 0
