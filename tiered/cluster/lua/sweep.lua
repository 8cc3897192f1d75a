-- sweep.lua: remove some of the stamps that a dead life of a node left behind.
-- KEYS[1] the blocks of that life, set    KEYS[2] prefix of meta (which blocks is only known from the set; same hash tag)
-- ARGV[1] node   ARGV[2] epoch   ARGV[3] how many at most
-- Returns {hashes taken from the set, stamps removed}. Keeps I8 (stamps of a newer life stay) and I9.

local node, epoch = ARGV[1], tonumber(ARGV[2])
local hashes = redis.call('SPOP', KEYS[1], ARGV[3])
local removed = 0
for _, hash in ipairs(hashes) do
  local meta_key = KEYS[2] .. hash
  local record = read_record(meta_key)
  local at = owner_index(record[OWNERS], node)
  if at and record[OWNERS][at + 1] <= epoch then
    drop_owner(record[OWNERS], at)
    write_record(meta_key, record)
    removed = removed + 1
  end
end
return {#hashes, removed}
