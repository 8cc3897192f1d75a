-- give_back.lua: store the policies that a server has lost, all at once.
-- KEYS[1] tenants, hash    KEYS[2] their revision
-- ARGV: tenant, JSON for each
-- Returns how many were stored; one that is there stays. At once, because whoever read some of them alone would take the
-- other tenants for unbounded.

local n_stored = 0
for i = 1, #ARGV, 2 do
  n_stored = n_stored + redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
end
if n_stored > 0 then redis.call('INCR', KEYS[2]) end
return n_stored
