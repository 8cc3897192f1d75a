-- touch.lua: a prefix was used: its blocks become the newest of this tenant, the shallowest newest of all.
-- KEYS[1..9] as in books.lua, then the meta of each block, shallowest first
-- ARGV[1] tenant   ARGV[2] ms from now at which the blocks may be taken for old: 0, or for how long they are pinned
--   ARGV[3] 1: even if they were newer (a pin ends)   then for each block: depth, hash
-- Returns how many were touched. A tenant that reads a value it is not charged for is charged its part from now on, if that
-- fits below its limit; else it reads as a guest, and the use counts for the first of those who pay.

local tenant, ahead_ms, even_newer = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local touched = 0
for i = 4, #ARGV, 2 do
  local hash, score = ARGV[i + 1], score_of(now + ahead_ms, tonumber(ARGV[i]))
  local user = tenant
  if not redis.call('ZSCORE', blocks_prefix .. tenant, hash) then
    local record = read_record(meta_prefix .. hash)
    user = nil
    if record[STATE] == COMMITTED then
      local of = account(tenant)
      if not index_of(record[TENANTS], tenant)
        and of.used + of.pending + part_for_one_more(record) <= of.limit then
        join(tenant, hash, record, score)
        user = tenant
      else
        user = record[TENANTS][1]
      end
    end
  end
  if user then
    if even_newer then
      redis.call('ZADD', blocks_prefix .. user, 'XX', score, hash)
    else
      redis.call('ZADD', blocks_prefix .. user, 'XX', 'GT', score, hash)
    end
    touched = touched + 1
  end
end
close_books()
return touched
