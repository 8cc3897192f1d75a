-- announce.lua: one life of a node says which blocks it now holds hot, and which no longer.
-- KEYS[1] the blocks of this life, set   KEYS[2] their digest, hash   KEYS[3] changes, stream
--   then the metas of the stored blocks, then of the removed ones; a meta ends with its block's hash
-- ARGV[1] node   ARGV[2] epoch   ARGV[3] number of this announcement, 0: none   ARGV[4] how many are stored
--   ARGV[5] '' or what the life holds after this, as it knows itself: the count, and ARGV[6] the sum, 16 hex digits
-- Returns {1, stamps changed}; or {0, the last number}: this one is older than what was here and changes nothing.
-- Keeps I8: a stamp of a newer epoch is neither replaced nor removed by an older life, nor is what a life said later by what
-- it said earlier. A hash is in KEYS[1] exactly while this life stamps its record, or until a newer life's stamp takes over
-- (the sweep then finds nothing to remove). A stamp that was lost although the hash is in the set is made anew.

local node, epoch, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local n_stored, n = tonumber(ARGV[4]), #KEYS - 3
local last = tonumber(redis.call('HGET', KEYS[2], 'q') or '') or 0
if number > 0 and number <= last then return {0, digits(last)} end

local metas, hashes = {unpack(KEYS, 4)}, {}
for i = 1, n do hashes[i] = metas[i]:sub(-HASH_BYTES) end
local packed_of, held = {}, {}
if n > 0 then
  packed_of = redis.call('MGET', unpack(metas))
  held = redis.call('SMISMEMBER', KEYS[1], unpack(hashes))
end

-- What becomes of a record, by its bytes: those of many blocks are equal. {what to write, whether it stays as it is}
local with, without = {}, {}

local function stamped(packed)
  local record = record_of(packed)
  local owners = record[OWNERS]
  local at = owner_index(owners, node) or #owners + 1
  local seen = owners[at + 1]
  if seen == epoch then return {packed, true} end
  if seen and seen > epoch then return {packed, true, is_newer = true} end
  owners[at], owners[at + 1] = node, epoch
  return {cmsgpack.pack(record), false}
end

local function unstamped(packed)
  local record = record_of(packed)
  local at = owner_index(record[OWNERS], node)
  if not at or record[OWNERS][at + 1] > epoch then return {packed, true} end
  drop_owner(record[OWNERS], at)
  return {is_kept(record) and cmsgpack.pack(record), false}
end

local writes, deletes, added, dropped = {}, {}, {}, {}
for i = 1, n do
  local packed = packed_of[i]
  local memo = i <= n_stored and with or without
  local outcome = memo[packed]
  if not outcome then
    outcome = i <= n_stored and stamped(packed) or i > n_stored and unstamped(packed)
    memo[packed] = outcome
  end
  if i > n_stored then
    if held[i] == 1 then dropped[#dropped + 1] = hashes[i] end
  elseif held[i] == 0 and not outcome.is_newer then
    added[#added + 1] = hashes[i]
  end
  if not outcome[2] then
    if outcome[1] then
      writes[#writes + 1], writes[#writes + 2] = metas[i], outcome[1]
    else
      deletes[#deletes + 1] = metas[i]
    end
  end
end
if #writes > 0 then redis.call('MSET', unpack(writes)) end
if #deletes > 0 then redis.call('DEL', unpack(deletes)) end
if #added > 0 then redis.call('SADD', KEYS[1], unpack(added)) end
if #dropped > 0 then redis.call('SREM', KEYS[1], unpack(dropped)) end
note_digest(KEYS[1], KEYS[2], added, dropped, math.max(number, last), ARGV[5], ARGV[6])
note_changes(KEYS[3], node, ARGV[2], added, dropped)
return {1, #writes / 2 + #deletes}
