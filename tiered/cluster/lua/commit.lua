-- commit.lua: reserved values whose bytes have arrived become readable and charged.
-- KEYS[1..9] as in books.lua, then the meta of each block
-- ARGV for each block: hash, tenant, size
-- Returns for each block 1 if it is committed now, else 0.
-- A committed block makes those it hangs on as new as itself, or they would leave before it. Keeps I5 (pending bytes become used bytes, once) and: a committed record has a value of exactly its size. A value without
-- a reservation is removed, unless another writer holds one: that writer answers for it.

local answers, ended = {}, {}

-- Up to the first one that is new already, as those of a block committed a moment ago are.
local function refresh_line(hash, tenant)
  local zset, newer_than = blocks_prefix .. tenant, tonumber(score_of(now - 1000, 0))
  for _ = 1, 512 do
    local seen = hash ~= '' and redis.call('ZSCORE', zset, hash)
    if not seen or tonumber(seen) > newer_than then return end
    local record = read_record(meta_prefix .. hash)
    redis.call('ZADD', zset, 'XX', 'GT', score_of(now, record[DEPTH]), hash)
    hash = record[PARENT]
  end
end

for i = 1, #ARGV, 3 do
  local hash, tenant, size = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local meta_key, value_key = meta_prefix .. hash, value_prefix .. hash
  local record = read_record(meta_key)
  local stored = stored_bytes(value_key, size)
  local answer = 0
  if record[STATE] == RESERVED and record[TENANTS][1] == tenant and record[EXPIRES] > now and stored == record[SIZE] then
    add_pending(tenant, -record[SIZE])
    record[STATE], record[EXPIRES] = COMMITTED, 0
    charge(record, 1)
    write_record(meta_key, record)
    for _, key in ipairs(value_keys(value_key, size)) do redis.call('PERSIST', key) end
    ended[#ended + 1], committed[#committed + 1] = hash, hash
    list(blocks_prefix .. tenant, score_of(now, record[DEPTH]), hash)
    refresh_line(record[PARENT], tenant)
    answer = 1
  elseif record[STATE] == COMMITTED then
    if stored == record[SIZE] then answer = 1 end
  elseif record[STATE] == NONE then
    drop_value(value_key, size)
  elseif record[TENANTS][1] == tenant then
    drop_stored(hash, record)
  end
  answers[#answers + 1] = answer
end
if #ended > 0 then redis.call('ZREM', reservations, unpack(ended)) end
close_books()
return answers
