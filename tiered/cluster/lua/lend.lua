-- lend.lua: the leader changes shares, if nothing it decided upon has changed since.
-- KEYS[1] the last leader's token   KEYS[2] nodes, hash   KEYS[3] shares, hash
-- ARGV[1] token   ARGV[2] revision of the books that was read   ARGV[3] the next one   ARGV[4] 1: the books are settled
-- ARGV[5] number of lives   then for each node, epoch   then number of records   then for each node, record (MessagePack)
-- then the nodes whose records go
-- Returns 1 changed, 0 the books or the members have changed, -1 the token is not the last one given out. All or nothing, so
-- a call that was late, or came twice, does no harm: no older leader's and no older decision is ever written over a newer.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
if (redis.call('HGET', KEYS[3], ':revision') or '0') ~= ARGV[2] then return 0 end
local n_lives = tonumber(ARGV[5])
if redis.call('HLEN', KEYS[2]) ~= n_lives then return 0 end
local at = 6
for _ = 1, n_lives do
  if registered_epoch(KEYS[2], ARGV[at]) ~= tonumber(ARGV[at + 1]) then return 0 end
  at = at + 2
end
local n_records = tonumber(ARGV[at])
at = at + 1
for _ = 1, n_records do
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 1])
  at = at + 2
end
for i = at, #ARGV do
  redis.call('HDEL', KEYS[3], ARGV[i])
  if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 0 then redis.call('HDEL', KEYS[3], ARGV[i] .. ':held') end
end
redis.call('HSET', KEYS[3], ':token', ARGV[1], ':revision', ARGV[3], ':settled', ARGV[4])
return 1
