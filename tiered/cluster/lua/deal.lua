-- deal.lua: begin a deal of the bounds to the partitions: its number, and what is to be dealt at this moment.
-- KEYS[1] number of the last deal    KEYS[2] tenants, hash    KEYS[3] shape, hash
-- ARGV[1] 1: begin one, 0: only look   ARGV[2] partitions   ARGV[3] version of the keys
-- Both ways these two are noted again should the server have lost them, and 'born' if it is not there.
-- Returns {number, {tenant, JSON, ...}, capacity or ''}. A later deal has a greater number, and never older policies. A server
-- that restarted empty, or from an earlier snapshot, has forgotten the last number while other servers of a Redis Cluster
-- still know it, so none is below its clock's milliseconds, as with epochs. By 'born' who knew it before sees that it was lost.

local time = redis.call('TIME')
local number = tonumber(redis.call('GET', KEYS[1]) or '0')
if ARGV[1] == '1' then
  number = math.max(number + 1, time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('SET', KEYS[1], string.format('%.0f', number))
end
redis.call('HSETNX', KEYS[3], 'partitions', ARGV[2])
redis.call('HSETNX', KEYS[3], 'schema', ARGV[3])
redis.call('HSETNX', KEYS[3], 'born', string.format('%.0f', time[1] * 1000000 + time[2]))
return {number, redis.call('HGETALL', KEYS[2]), redis.call('HGET', KEYS[3], 'capacity') or ''}
