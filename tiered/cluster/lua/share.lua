-- share.lua: a life of a node says what it holds of the totals, and hears what it is lent.
-- KEYS[1] nodes, hash   KEYS[2] shares, hash
-- ARGV[1] node   ARGV[2] epoch   ARGV[3] its report, MessagePack
-- Returns {0, record or ''}; {-1} if the node is not registered, else {the other life's epoch}. Keeps I8: only the
-- registered life reports and hears, so a report in the books is never of an older life than one read there before.

local node, epoch = ARGV[1], tonumber(ARGV[2])
local current = registered_epoch(KEYS[1], node)
if not current then return {-1} end
if current ~= epoch then return {current} end
redis.call('HSET', KEYS[2], node .. ':held', ARGV[3])
return {0, redis.call('HGET', KEYS[2], node) or ''}
