-- join.lua: begin a new life of a node.
-- KEYS[1] the last epoch   KEYS[2] nodes, hash   KEYS[3] the node's lease   KEYS[4] stats, hash   KEYS[5] retired tokens, hash
-- ARGV[1] node   ARGV[2] NodeInfo, MessagePack   ARGV[3] lease, ms
-- Returns the epoch. Keeps I8: it is greater than every epoch given out before. A server that restarted empty, or from an
-- earlier snapshot, has forgotten the last one, so none is below its clock's milliseconds: a thousand joins a second would be
-- needed to overtake it.

local node = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local epoch = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, now)
redis.call('SET', KEYS[1], string.format('%.0f', epoch))
end_life(KEYS[2], KEYS[4], KEYS[5], node)
-- \146 opens a MessagePack array of two, so the info goes in exactly as it was encoded.
redis.call('HSET', KEYS[2], node, '\146' .. ARGV[2] .. cmsgpack.pack(epoch))
redis.call('SET', KEYS[3], string.format('%.0f', epoch), 'PX', ARGV[3])
return epoch
