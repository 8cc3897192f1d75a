-- nodes.lua: every registered life with its lease and stats, at one moment.
-- KEYS[1] nodes, hash   KEYS[2] stats, hash   KEYS[3] prefix of leases (which nodes is only known from KEYS[1]; same hash tag)
-- ARGV[1] 1: with stats, 0: without; they have a row for each tenant, which is most of it
-- Returns for each node {node, entry, lease left in ms (0: lapsed), stats or false}. Changes nothing.

local answer = {}
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local node, lease_left = entries[i], redis.call('PTTL', KEYS[3] .. entries[i])
  -- PTTL rounds: 0 is a lease that still runs, only a negative answer says that it is gone.
  lease_left = lease_left < 0 and 0 or math.max(lease_left, 1)
  answer[#answer + 1] = {node, entries[i + 1], lease_left, ARGV[1] == '1' and redis.call('HGET', KEYS[2], node)}
end
return answer
