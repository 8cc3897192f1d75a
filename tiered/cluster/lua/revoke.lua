-- revoke.lua: forget one tenant's tokens: one by its id, or all of them.
-- KEYS[1] access tokens, hash     ARGV[1] tenant   ARGV[2] id, or empty for all
-- Returns how many are gone.

local gone = 0
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  if entries[i] ~= ':revision' then
    local grant = cjson.decode(entries[i + 1])
    if grant.tenant == ARGV[1] and (ARGV[2] == '' or grant.id == ARGV[2]) then
      gone = gone + redis.call('HDEL', KEYS[1], entries[i])
    end
  end
end
if gone > 0 then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[1], ':revision', time[1] .. '.' .. time[2])
end
return gone
