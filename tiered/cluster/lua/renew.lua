-- renew.lua: lengthen the lease of a life and store its latest stats.
-- KEYS[1] nodes, hash   KEYS[2] the node's lease   KEYS[3] stats, hash
-- ARGV[1] node   ARGV[2] epoch   ARGV[3] NodeStats, MessagePack   ARGV[4] lease, ms
-- Returns 0 renewed, -1 lapsed (or the server restarted empty), else the epoch of the other life that runs.
-- Keeps I8: a lapsed lease is never revived, and the stats are always those of the registered life.

local node, epoch = ARGV[1], tonumber(ARGV[2])
local current = registered_epoch(KEYS[1], node)
if not current then return -1 end
if current ~= epoch then return current end
if tonumber(redis.call('GET', KEYS[2]) or '') ~= epoch then return -1 end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('HSET', KEYS[3], node, ARGV[3])
return 0
