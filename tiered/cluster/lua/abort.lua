-- abort.lua: give reservations back, and remove what was written under them.
-- KEYS[1] usage, hash    KEYS[2] reservations, zset    then for each block: its meta, its value, the tenant's blocks, zset
-- ARGV for each block: hash, tenant
-- Returns how many reservations of these tenants ended. Keeps I5; committed blocks and other tenants' reservations stay.

local ended = 0
for i = 1, #ARGV / 2 do
  local meta_key, block_key, tenant_blocks = KEYS[3 * i], KEYS[3 * i + 1], KEYS[3 * i + 2]
  local record = read_record(meta_key)
  if record[STATE] == RESERVED and record[TENANT] == ARGV[2 * i] then
    drop_stored(KEYS[1], KEYS[2], tenant_blocks, meta_key, block_key, ARGV[2 * i - 1], record)
    ended = ended + 1
  end
end
return ended
