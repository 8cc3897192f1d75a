-- clear.lua: a tenant lets go of some of its blocks, pinned or not, oldest first.
-- KEYS[1..9] as in books.lua
-- ARGV[1] tenant   ARGV[2] how many at most
-- Returns how many it let go of. What others use too stays for them. Keeps I5.

local zset, cleared = blocks_prefix .. ARGV[1], 0
for _, hash in ipairs(redis.call('ZRANGE', zset, 0, tonumber(ARGV[2]) - 1)) do
  local record = read_record(meta_prefix .. hash)
  if record[STATE] == COMMITTED and index_of(record[TENANTS], ARGV[1]) then
    let_go(ARGV[1], hash, record, 'cleared', 'asked for', '')
  end
  redis.call('ZREM', zset, hash)
  cleared = cleared + 1
end
close_books()
return cleared
