-- record.lua: one block's meta record; scripts.py prepends it to the scripts of the ledger and the directory.
-- A record is the MessagePack array {state, size, tenant, depth, expires_ms, owners}; owners is flat:
-- {node, epoch, node, epoch, ...}, a node at most once. A record with state NONE and no owner is not kept.

local NONE, RESERVED, COMMITTED = 0, 1, 2
local STATE, SIZE, TENANT, DEPTH, EXPIRES, OWNERS = 1, 2, 3, 4, 5, 6

local function read_record(meta_key)
  local packed = redis.call('GET', meta_key)
  if packed then return cmsgpack.unpack(packed) end
  return {NONE, 0, '', 0, 0, {}}
end

local function write_record(meta_key, record)
  if record[STATE] == NONE and #record[OWNERS] == 0 then
    redis.call('DEL', meta_key)
  else
    redis.call('SET', meta_key, cmsgpack.pack(record))
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
