-- lives.lua: how a life of a node begins and ends in the books; scripts.py prepends it to the scripts of membership.
-- A node's entry is the MessagePack array {info, epoch}. Its stats belong to the life that the entry names, so ending a life
-- folds them and removes both: no token is counted twice or lost. What cannot be read or added is left out: a bad field must
-- not keep a name from its next life.

-- What is packed, or nothing where that is no table.
local function unpacked(packed)
  local fine, value = pcall(cmsgpack.unpack, packed)
  return fine and type(value) == 'table' and value or {}
end

local function table_in(of, field)
  return type(of) == 'table' and type(of[field]) == 'table' and of[field] or {}
end

-- The epoch of the registered life, or nil.
local function registered_epoch(nodes, node)
  local entry = redis.call('HGET', nodes, node)
  return entry and unpacked(entry)[2]
end

-- A sum stays within what a double holds exactly; what would leave that is no count.
local SUM_MAX = 2 ^ 53

local function add_retired(retired, name, tokens)
  local sum = (tonumber(redis.call('HGET', retired, name) or '') or 0) + tokens
  if tokens > 0 and sum <= SUM_MAX then
    redis.call('HSET', retired, name, string.format('%.0f', sum))
  end
end

local function end_life(nodes, stats, retired, node)
  local packed = redis.call('HGET', stats, node)
  if packed then
    for tenant, of in pairs(table_in(unpacked(packed), 'tenants')) do
      for field, tokens in pairs(table_in(of, 'tokens')) do
        if type(tokens) == 'number' then
          add_retired(retired, tostring(tenant) .. '|' .. tostring(field), tokens)
        end
      end
    end
    redis.call('HDEL', stats, node)
  end
  redis.call('HDEL', nodes, node)
end
