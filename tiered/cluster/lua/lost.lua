-- lost.lua: take some of the blocks that want a new second copy, or put back some that were taken.
-- KEYS[1] the lost blocks, sorted set by when they may be taken, ms
-- ARGV[1] ms until these may be taken again   ARGV[2] how many to take, 0: put back the blocks that follow
-- Returns the blocks. Who takes some and dies leaves them to whoever comes after that time; who is through with a block
-- removes it. None that was removed meanwhile comes back.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local hashes = {unpack(ARGV, 3)}
if tonumber(ARGV[2]) > 0 then
  hashes = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', digits(now), 'LIMIT', 0, ARGV[2])
end
local scored = {}
for i, hash in ipairs(hashes) do scored[2 * i - 1], scored[2 * i] = digits(now + tonumber(ARGV[1])), hash end
if #scored > 0 then redis.call('ZADD', KEYS[1], 'XX', unpack(scored)) end
return hashes
