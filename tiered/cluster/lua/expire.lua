-- expire.lua: a tenant lets go of blocks that nobody of it has used for too long.
-- KEYS[1..9] as in books.lua
-- ARGV[1] tenant   ARGV[2] ms of idleness allowed   ARGV[3] how many at most
-- Returns how many it let go of. What others use too stays for them. Keeps I5, I9.

local zset, expired = blocks_prefix .. ARGV[1], 0
local oldest_kept = score_of(now - tonumber(ARGV[2]), 0)
for _, hash in ipairs(redis.call('ZRANGEBYSCORE', zset, '-inf', oldest_kept, 'LIMIT', 0, ARGV[3])) do
  local record = read_record(meta_prefix .. hash)
  if record[STATE] == COMMITTED and index_of(record[TENANTS], ARGV[1]) then
    let_go(ARGV[1], hash, record, 'expired', 'not used for too long', '')
  end
  redis.call('ZREM', zset, hash)
  expired = expired + 1
end
close_books()
return expired
