-- give_back.lua: store the policies that a server has lost, all at once.
-- KEYS[1] tenants, hash    KEYS[2] their revision    KEYS[3] shape, hash
-- ARGV[1] births of the books they were in, noted so that they are given back once    then for each: tenant, JSON
-- Returns how many were stored; one that is there stays. At once, because whoever read some of them alone would take the
-- other tenants for unbounded. The revision is not below the server's clock in milliseconds then: it counts from 1 again
-- since the loss, and must not come to be one that somebody knows from before it.

redis.call('HSET', KEYS[3], 'before', ARGV[1])
local n_stored = 0
for i = 2, #ARGV, 2 do
  n_stored = n_stored + redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
end
if n_stored > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('SET', KEYS[2], string.format('%.0f', math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, now)))
end
return n_stored
