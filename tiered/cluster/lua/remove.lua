-- remove.lua: forget stored values and their charge, whoever is charged; for values found corrupt or lost.
-- KEYS[1..9] as in books.lua, then the meta of each block
-- ARGV[1] why, in words for people    then for each block: hash
-- Returns how many committed blocks were removed. Keeps I5; a running reservation stays: its writer replaces the value.

local removed = 0
for i = 2, #ARGV do
  local hash = ARGV[i]
  local record = read_record(meta_prefix .. hash)
  if record[STATE] ~= RESERVED then
    if record[STATE] == COMMITTED then
      removed = removed + 1
      note_all('removed', hash, record, ARGV[1])
    end
    drop_stored(hash, record)
  end
end
close_books()
return removed
