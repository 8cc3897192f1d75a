-- stream.lua: what changed, for those who mirror where blocks are; scripts.py prepends it where something may change.
-- An entry of the partition's stream is n: node, '' for the tier itself   e: epoch, 0 for the tier
--   s: hashes that this life holds from now on (that the tier has stored), joined   r: hashes that it holds no longer, joined.
-- Ids are 0-1, 0-2, ...: a reader that misses one knows. Whoever appends lists only what has really changed, once a call, and
-- no hash in both.

local ENTRIES_MAX = 1024

local function note_changes(stream, node, epoch, stored, removed)
  if #stored == 0 and #removed == 0 then return end
  redis.call('XADD', stream, 'MAXLEN', '~', ENTRIES_MAX, '0-*',
    'n', node, 'e', epoch, 's', table.concat(stored), 'r', table.concat(removed))
end
