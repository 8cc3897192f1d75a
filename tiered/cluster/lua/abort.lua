-- abort.lua: give reservations back, and remove what was written under them.
-- KEYS[1..9] as in books.lua, then the meta of each block
-- ARGV for each block: hash, tenant
-- Returns how many reservations of these tenants ended. Keeps I5; committed blocks and other tenants' reservations stay.

local ended = 0
for i = 1, #ARGV, 2 do
  local record = read_record(meta_prefix .. ARGV[i])
  if record[STATE] == RESERVED and record[TENANTS][1] == ARGV[i + 1] then
    drop_stored(ARGV[i], record)
    ended = ended + 1
  end
end
close_books()
return ended
