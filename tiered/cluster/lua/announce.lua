-- announce.lua: one life of a node says which blocks it now holds hot, and which no longer.
-- KEYS[1] the blocks of this life, set    then the metas of the stored blocks, then of the removed ones
-- ARGV[1] node   ARGV[2] epoch   ARGV[3] how many are stored   then the hashes, in the order of the metas
-- Returns how many stamps changed.
-- Keeps I8: a stamp of a newer epoch is neither replaced nor removed by an older life. A hash is in KEYS[1] exactly while
-- this life stamps its record, or until a newer life's stamp takes over (the sweep then finds nothing to remove).

local node, epoch, n_stored = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local changed = 0
for i = 1, #ARGV - 3 do
  local meta_key, hash = KEYS[i + 1], ARGV[i + 3]
  local record = read_record(meta_key)
  local owners = record[OWNERS]
  local at = owner_index(owners, node)
  local seen = at and owners[at + 1]
  if i <= n_stored then
    if not seen or seen <= epoch then
      redis.call('SADD', KEYS[1], hash)
      if seen ~= epoch then
        at = at or #owners + 1
        owners[at], owners[at + 1] = node, epoch
        write_record(meta_key, record)
        changed = changed + 1
      end
    end
  else
    redis.call('SREM', KEYS[1], hash)
    if seen and seen <= epoch then
      drop_owner(owners, at)
      write_record(meta_key, record)
      changed = changed + 1
    end
  end
end
return changed
