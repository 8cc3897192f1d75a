-- commit.lua: reserved values whose bytes have arrived become readable and charged.
-- KEYS[1] usage, hash    KEYS[2] reservations, zset    then for each block: its meta, its value, the tenant's blocks, zset
-- ARGV for each block: hash, tenant
-- Returns for each block 1 if it is committed now, else 0.
-- Keeps I5 (pending bytes become used bytes, once) and: a committed record has a value of exactly its size. A value without
-- a reservation is removed, unless another writer holds one: that writer answers for it.

local usage, reservations = KEYS[1], KEYS[2]
local now = now_ms()
local answers = {}
for i = 1, #ARGV / 2 do
  local meta_key, block_key, tenant_blocks = KEYS[3 * i], KEYS[3 * i + 1], KEYS[3 * i + 2]
  local hash, tenant = ARGV[2 * i - 1], ARGV[2 * i]
  local record = read_record(meta_key)
  local stored = redis.call('STRLEN', block_key)
  answers[i] = 0
  if record[STATE] == RESERVED and record[TENANT] == tenant and record[EXPIRES] > now and stored == record[SIZE] then
    add_pending(usage, tenant, -record[SIZE])
    add_used(usage, tenant, record[SIZE])
    record[STATE], record[EXPIRES] = COMMITTED, 0
    write_record(meta_key, record)
    redis.call('PERSIST', block_key)
    redis.call('ZREM', reservations, hash)
    redis.call('ZADD', tenant_blocks, block_score(now, record[DEPTH]), hash)
    answers[i] = 1
  elseif record[STATE] == COMMITTED then
    if stored == record[SIZE] then answers[i] = 1 end
  elseif record[STATE] == NONE or record[TENANT] == tenant then
    drop_stored(usage, reservations, tenant_blocks, meta_key, block_key, hash, record)
  end
end
return answers
