-- lives.lua: how a life of a node begins and ends in the books; scripts.py prepends it to the scripts of membership.
-- A node's entry is the MessagePack array {info, epoch}. Its stats belong to the life that the entry names, so ending a life
-- folds them and removes both: no token is counted twice or lost.

-- The epoch of the registered life, or nil.
local function registered_epoch(nodes, node)
  local entry = redis.call('HGET', nodes, node)
  return entry and cmsgpack.unpack(entry)[2]
end

local function end_life(nodes, stats, retired, node)
  local packed = redis.call('HGET', stats, node)
  if packed then
    for tenant, of in pairs(cmsgpack.unpack(packed).tenants) do
      for field, tokens in pairs(of.tokens) do
        if tokens ~= 0 then
          redis.call('HINCRBY', retired, tenant .. '|' .. field, string.format('%.0f', tokens))
        end
      end
    end
    redis.call('HDEL', stats, node)
  end
  redis.call('HDEL', nodes, node)
end
