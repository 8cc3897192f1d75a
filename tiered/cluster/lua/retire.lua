-- retire.lua: end one life of a node; its token counts move to the retired ones.
-- KEYS[1] nodes, hash   KEYS[2] the node's lease   KEYS[3] stats, hash   KEYS[4] retired tokens, hash
-- ARGV[1] node   ARGV[2] epoch   ARGV[3] 'leave': now, the lease ends with it; 'lapsed': only if the lease has lapsed
-- Returns 1 if this call ended it, else 0. Keeps I8 (only that exact life) and: each life is folded exactly once.

local node, epoch = ARGV[1], tonumber(ARGV[2])
if registered_epoch(KEYS[1], node) ~= epoch then return 0 end
if ARGV[3] == 'leave' then
  redis.call('DEL', KEYS[2])
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
end_life(KEYS[1], KEYS[3], KEYS[4], node)
return 1
