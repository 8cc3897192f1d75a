-- sweep.lua: remove some of the stamps that a dead life of a node left behind.
-- KEYS[1] the blocks of that life, set   KEYS[2] their digest, hash   KEYS[3] changes, stream
-- KEYS[4] prefix of meta (which blocks is only known from the set; same hash tag)
-- KEYS[5] lost blocks, sorted set   KEYS[6] how many of those were dropped
-- ARGV[1] node   ARGV[2] epoch   ARGV[3] how many at most
-- ARGV[4] how many lost blocks there may be   ARGV[5] for how long they are kept after the last, ms
-- ARGV[6] '1' if tenants ask for two copies by default   ARGV[7..] the tenants of whom the opposite holds
-- What asks for two copies and is left in Redis alone is noted as lost, in the same step that drops its last stamp.
-- Returns {hashes taken from the set, stamps removed}. Keeps I8 (stamps of a newer life stay) and I9.

local node, epoch = ARGV[1], tonumber(ARGV[2])
local hashes = redis.call('SPOP', KEYS[1], ARGV[3])
if #hashes == 0 then
  redis.call('DEL', KEYS[2])
  return {0, 0}
end
local asked_by_default, differs = ARGV[6] == '1', {}
for i = 7, #ARGV do differs[ARGV[i]] = true end

local function asks_for_two(record)
  for _, tenant in ipairs(record[TENANTS]) do
    if (differs[tenant] == true) ~= asked_by_default then return true end
  end
  return false
end

local metas, writes, deletes, lost = {}, {}, {}, {}
for i, hash in ipairs(hashes) do metas[i] = KEYS[4] .. hash end
for i, packed in ipairs(redis.call('MGET', unpack(metas))) do
  local record = record_of(packed)
  local at = owner_index(record[OWNERS], node)
  if at and record[OWNERS][at + 1] <= epoch then
    drop_owner(record[OWNERS], at)
    if #record[OWNERS] == 0 and record[STATE] == COMMITTED and asks_for_two(record) then lost[#lost + 1] = hashes[i] end
    if is_kept(record) then
      writes[#writes + 1], writes[#writes + 2] = metas[i], cmsgpack.pack(record)
    else
      deletes[#deletes + 1] = metas[i]
    end
  end
end
if #writes > 0 then redis.call('MSET', unpack(writes)) end
if #deletes > 0 then redis.call('DEL', unpack(deletes)) end
if #lost > 0 then
  local time, scored = redis.call('TIME'), {}
  local now = digits(tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
  for i, hash in ipairs(lost) do scored[2 * i - 1], scored[2 * i] = now, hash end
  redis.call('ZADD', KEYS[5], unpack(scored))
  local over = redis.call('ZCARD', KEYS[5]) - tonumber(ARGV[4])
  if over > 0 then
    redis.call('ZREMRANGEBYRANK', KEYS[5], 0, over - 1)
    redis.call('INCRBY', KEYS[6], over)
    redis.call('PEXPIRE', KEYS[6], ARGV[5])
  end
  redis.call('PEXPIRE', KEYS[5], ARGV[5])
end
note_digest(KEYS[1], KEYS[2], {}, hashes, 0, '', '')
note_changes(KEYS[3], node, ARGV[2], {}, hashes)
return {#hashes, #writes / 2 + #deletes}
