-- join.lua: begin a new life of a node.
-- KEYS[1] the last epoch   KEYS[2] nodes, hash   KEYS[3] the node's lease   KEYS[4] stats, hash   KEYS[5] retired tokens, hash
-- ARGV[1] node   ARGV[2] NodeInfo, MessagePack   ARGV[3] lease, ms
-- Returns the epoch. Keeps I8: it is greater than every epoch given out before. A server that restarted empty has forgotten
-- the last one, so counting starts at its clock's milliseconds: a thousand joins a second would be needed to overtake it.

local node = ARGV[1]
if redis.call('EXISTS', KEYS[1]) == 0 then
  local now = redis.call('TIME')
  redis.call('SET', KEYS[1], string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
end
local epoch = redis.call('INCR', KEYS[1])
end_life(KEYS[2], KEYS[4], KEYS[5], node)
-- \146 opens a MessagePack array of two, so the info goes in exactly as it was encoded.
redis.call('HSET', KEYS[2], node, '\146' .. ARGV[2] .. cmsgpack.pack(epoch))
redis.call('SET', KEYS[3], epoch, 'PX', ARGV[3])
return epoch
