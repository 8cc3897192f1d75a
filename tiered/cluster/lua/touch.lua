-- touch.lua: a prefix was used: its blocks become the newest of their tenants, the shallowest newest of all.
-- KEYS[1] the reader's blocks, zset    KEYS[2] prefix of tenants' blocks (a shared block may be charged to another tenant,
--   whom only its record names; same hash tag)    then for each block, shallowest first: its meta
-- ARGV for each block: hash
-- Returns how many were touched. Adds no member to any set.

local now = now_ms()
local touched = 0
for i = 1, #ARGV do
  local hash, score = ARGV[i], block_score(now, i - 1)
  if redis.call('ZSCORE', KEYS[1], hash) then
    redis.call('ZADD', KEYS[1], 'XX', score, hash)
    touched = touched + 1
  else
    local record = read_record(KEYS[i + 2])
    if record[STATE] == COMMITTED then
      redis.call('ZADD', KEYS[2] .. record[TENANT], 'XX', score, hash)
      touched = touched + 1
    end
  end
end
return touched
