-- books.lua: bytes used and pending per tenant; scripts.py prepends it (after record.lua) to the ledger's scripts.
-- The usage hash holds u:<tenant> and p:<tenant>, and their sums U and P; a field at zero is not kept.
-- Keeps I5: a record's size stands in exactly one of the two columns while it is reserved or committed.

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Score of a block in its tenant's sorted set: later is newer, and at one time the shallower is newer, so that
-- the tail of a prefix leaves first. Ticks of 10 ms since 2025 take 35 bits until 2035, the depth takes 18: both
-- fit the 53 bits of a double.
local function block_score(ms, depth)
  local ticks = math.floor(ms / 10) - 173568960000
  return digits(ticks * 262144 - math.min(depth, 262143))
end

local function add(usage, field, bytes)
  if redis.call('HINCRBY', usage, field, digits(bytes)) == 0 then redis.call('HDEL', usage, field) end
end

local function add_used(usage, tenant, bytes)
  add(usage, 'u:' .. tenant, bytes)
  add(usage, 'U', bytes)
end

local function add_pending(usage, tenant, bytes)
  add(usage, 'p:' .. tenant, bytes)
  add(usage, 'P', bytes)
end

-- Forgets value, state and charge of a record, whichever state it is in; its owners stay.
local function drop_stored(usage, reservations, tenant_blocks, meta_key, block_key, hash, record)
  if record[STATE] == RESERVED then
    add_pending(usage, record[TENANT], -record[SIZE])
    redis.call('ZREM', reservations, hash)
  elseif record[STATE] == COMMITTED then
    add_used(usage, record[TENANT], -record[SIZE])
    redis.call('ZREM', tenant_blocks, hash)
  end
  redis.call('UNLINK', block_key)
  record[STATE], record[SIZE], record[TENANT], record[DEPTH], record[EXPIRES] = NONE, 0, '', 0, 0
  write_record(meta_key, record)
end
