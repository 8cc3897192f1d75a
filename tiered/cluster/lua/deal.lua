-- deal.lua: begin a deal of the bounds to the partitions: its number, and what is to be dealt at this moment.
-- KEYS[1] number of the last deal    KEYS[2] tenants, hash    KEYS[3] shape, hash
-- ARGV[1] 1: begin one, 0: only look   ARGV[2] partitions   ARGV[3] version of the keys: noted again should the server have lost them
-- Returns {number, {tenant, JSON, ...}, capacity or ''}. A later deal has a greater number, and never older policies.

local number = ARGV[1] == '1' and redis.call('INCR', KEYS[1]) or tonumber(redis.call('GET', KEYS[1]) or '0')
redis.call('HSETNX', KEYS[3], 'partitions', ARGV[2])
redis.call('HSETNX', KEYS[3], 'schema', ARGV[3])
return {number, redis.call('HGETALL', KEYS[2]), redis.call('HGET', KEYS[3], 'capacity') or ''}
