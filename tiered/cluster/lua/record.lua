-- record.lua: one block's meta record; scripts.py prepends it to the scripts of the ledger and the directory.
-- A record is the MessagePack array {state, size, tenants, depth, expires_ms, owners, parent}: tenants are those charged for
-- the value, in equal parts; owners is flat, {node, epoch, node, epoch, ...}, a node at most once; parent is the hash of the
-- block before it, '' for the first of a prefix. A record with state NONE and no owner is not kept. A later release may
-- append to it; what follows the seven is kept as it is.

local NONE, RESERVED, COMMITTED = 0, 1, 2
local HASH_BYTES = 32
local STATE, SIZE, TENANTS, DEPTH, EXPIRES, OWNERS, PARENT = 1, 2, 3, 4, 5, 6, 7

-- Packed records by meta key, false where there is none: those read ahead in one call, and those written since.
local known = {}

local function read_ahead(meta_keys)
  for first = 1, #meta_keys, 1000 do
    local last = math.min(first + 999, #meta_keys)
    for i, packed in ipairs(redis.call('MGET', unpack(meta_keys, first, last))) do
      known[meta_keys[first + i - 1]] = packed
    end
  end
end

-- What cannot be read is as good as no record: the value under it is then nobody's, and is removed by whoever meets it.
local function record_of(packed)
  if packed then
    local fine, record = pcall(cmsgpack.unpack, packed)
    if fine and type(record) == 'table' and #record >= 7 then return record end
  end
  return {NONE, 0, {}, 0, 0, {}, ''}
end

local function read_record(meta_key)
  local packed = known[meta_key]
  if packed == nil then packed = redis.call('GET', meta_key) end
  return record_of(packed)
end

local function is_kept(record)
  return record[STATE] ~= NONE or #record[OWNERS] > 0
end

local function write_record(meta_key, record)
  if is_kept(record) then
    local packed = cmsgpack.pack(record)
    redis.call('SET', meta_key, packed)
    known[meta_key] = packed
  else
    redis.call('DEL', meta_key)
    known[meta_key] = false
  end
end

-- Lua prints large numbers as 1.7e+12; Redis wants digits.
local function digits(number)
  return string.format('%.0f', number)
end

-- The place of a node in the owners, or nil.
local function owner_index(owners, node)
  for i = 1, #owners, 2 do
    if owners[i] == node then return i end
  end
  return nil
end

local function drop_owner(owners, i)
  table.remove(owners, i + 1)
  table.remove(owners, i)
end
