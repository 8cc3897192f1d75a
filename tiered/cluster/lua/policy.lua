-- policy.lua: store or remove one tenant's policy.
-- KEYS[1] tenants, hash    KEYS[2] their revision
-- ARGV[1] create: if there is none, replace: if there is one, put: either way, delete   ARGV[2] tenant   ARGV[3] JSON
-- ARGV[4] the revision that the change was decided upon, or left out
-- Returns 1; 0 if nothing was changed; -1 if another change came after that revision, and nothing was changed. The revision
-- grows with every change.

local how, tenant = ARGV[1], ARGV[2]
if ARGV[4] and ARGV[4] ~= (redis.call('GET', KEYS[2]) or '0') then return -1 end
local exists = redis.call('HEXISTS', KEYS[1], tenant) == 1
if (how == 'create' and exists) or ((how == 'replace' or how == 'delete') and not exists) then return 0 end
if how == 'delete' then
  redis.call('HDEL', KEYS[1], tenant)
else
  redis.call('HSET', KEYS[1], tenant, ARGV[3])
end
redis.call('INCR', KEYS[2])
return 1
