-- remove.lua: forget stored values and their charge; for values found corrupt or lost.
-- KEYS[1] usage, hash   KEYS[2] reservations, zset   KEYS[3] prefix of tenants' blocks (the record names the tenant; same
--   hash tag)             then for each block: its meta, its value
-- ARGV for each block: hash
-- Returns how many committed blocks were removed. Keeps I5; a running reservation stays: its writer replaces the value.

local removed = 0
for i = 1, #ARGV do
  local meta_key, block_key = KEYS[2 * i + 2], KEYS[2 * i + 3]
  local record = read_record(meta_key)
  if record[STATE] ~= RESERVED then
    if record[STATE] == COMMITTED then removed = removed + 1 end
    drop_stored(KEYS[1], KEYS[2], KEYS[3] .. record[TENANT], meta_key, block_key, ARGV[i], record)
  end
end
return removed
