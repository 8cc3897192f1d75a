-- reserve.lua: set bytes aside for one block's value, or say why not.
-- KEYS[1] meta of the block      KEYS[2] its value            KEYS[3] the tenant's blocks, zset
-- KEYS[4] usage, hash            KEYS[5] limits, hash         KEYS[6] reservations, zset
-- KEYS[7..9] prefixes of meta, value and tenants' blocks. Victims and expired reservations are only known here, so
--   their keys are these prefixes and a hash or tenant: the one kind of key not in KEYS, of the same hash tag.
-- ARGV[1] hash   ARGV[2] tenant   ARGV[3] size, bytes   ARGV[4] depth   ARGV[5] time to live, ms
-- Returns 1 reserved, 2 reserved after evicting own blocks, 3 already there, 4 pending elsewhere,
--   5 refused: the tenant's limit, 6 refused: the tier is full.
-- Keeps I5 (used + pending <= limit, for the tenant and for the tier), I9 (at most 16 expired reservations are
-- settled and 32 blocks evicted in a call). Blocks are evicted only where that makes room, or where the tenant owes
-- more than 32 blocks (a lowered limit): the call is then refused, and the next ones come nearer.

local SETTLED_MAX, VICTIMS_MAX = 16, 32
local meta_key, block_key, own_blocks, usage, limits, reservations = unpack(KEYS, 1, 6)
local meta_prefix, block_prefix, blocks_prefix = unpack(KEYS, 7, 9)
local hash, tenant = ARGV[1], ARGV[2]
local size, depth, ttl_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_ms()

local function drop(of, record)
  drop_stored(usage, reservations, blocks_prefix .. record[TENANT], meta_prefix .. of, block_prefix .. of, of, record)
end

for _, expired in ipairs(redis.call('ZRANGEBYSCORE', reservations, '-inf', now, 'LIMIT', 0, SETTLED_MAX)) do
  local record = read_record(meta_prefix .. expired)
  if record[STATE] == RESERVED then
    drop(expired, record)
  else
    redis.call('ZREM', reservations, expired)
  end
end

local record = read_record(meta_key)
if record[STATE] == COMMITTED then
  if redis.call('STRLEN', block_key) == record[SIZE] then return 3 end
  drop(hash, record)  -- The server lost the value: settle, and go on as if it never was.
elseif record[STATE] == RESERVED then
  if record[EXPIRES] > now then return 4 end
  drop(hash, record)
end

local bounds = redis.call('HMGET', limits, tenant, '*', 'o:' .. tenant, 'o:*', ':capacity')
local limit = tonumber(bounds[1] or bounds[2] or '') or math.huge
local capacity = tonumber(bounds[5] or '') or math.huge
local refuses = (bounds[3] or bounds[4]) == 'refuse'
if size > limit then return 5 end
if size > capacity then return 6 end

local held = redis.call('HMGET', usage, 'u:' .. tenant, 'p:' .. tenant, 'U', 'P')
local over_limit = (tonumber(held[1] or '') or 0) + (tonumber(held[2] or '') or 0) + size - limit
local over_capacity = (tonumber(held[3] or '') or 0) + (tonumber(held[4] or '') or 0) + size - capacity
local over = math.max(over_limit, over_capacity)
local answer = 1

if over > 0 then
  local refusal = over_limit > 0 and 5 or 6
  if refuses then return refusal end
  local victims, freed = {}, 0
  for _, victim in ipairs(redis.call('ZRANGE', own_blocks, 0, VICTIMS_MAX - 1)) do
    if freed >= over then break end
    local theirs = read_record(meta_prefix .. victim)
    victims[#victims + 1] = {victim, theirs}
    freed = freed + theirs[SIZE]
  end
  if freed < over and not (over_limit > freed and #victims == VICTIMS_MAX) then return refusal end
  for _, victim in ipairs(victims) do
    if victim[2][STATE] == COMMITTED and victim[2][TENANT] == tenant then
      drop(victim[1], victim[2])
    else
      redis.call('ZREM', own_blocks, victim[1])  -- Its record is gone: the server lost it.
    end
  end
  if freed < over then return refusal end
  answer = 2
  record = read_record(meta_key)
end

record[STATE], record[SIZE], record[TENANT], record[DEPTH] = RESERVED, size, tenant, depth
record[EXPIRES] = now + ttl_ms
redis.call('UNLINK', block_key)  -- What an earlier writer left behind was never committed.
write_record(meta_key, record)
redis.call('ZADD', reservations, digits(record[EXPIRES]), hash)
add_pending(usage, tenant, size)
return answer
