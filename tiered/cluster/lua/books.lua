-- books.lua: who is charged for which bytes; scripts.py prepends it (after record.lua) to every script of the ledger.
-- KEYS[1] usage, hash     KEYS[2] limits, hash     KEYS[3] standings, zset     KEYS[4] reservations, zset
-- KEYS[5..7] prefixes of meta, value and tenants' blocks: which blocks leave is only known in here, so the keys of those, and
--   of all values, are these prefixes and a hash or tenant: the one kind of key not in KEYS, of the same hash tag.
-- KEYS[8] changes, stream    KEYS[9] why, list
--
-- The usage hash holds u:<tenant> and p:<tenant>, and their sums U and P; a field at zero is not kept. Standings hold what
-- each tenant uses beyond its reserved bytes, per unit of weight: who stands highest gives first.
-- Changes are gathered in here while the script runs, and written once by close_books(), its last act.
-- Keeps I5: a record's size stands in exactly one of the two columns while it is reserved or committed.

local usage, limits, standings, reservations = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local meta_prefix, value_prefix, blocks_prefix = KEYS[5], KEYS[6], KEYS[7]
local changes, why_list = KEYS[8], KEYS[9]
local FIXED_KEYS = 9
read_ahead({unpack(KEYS, FIXED_KEYS + 1)})

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- Score of a block in its tenant's sorted set: later is newer, and at one time the shallower is newer, so that
-- the tail of a prefix leaves first. Ticks of 10 ms since 2025 take 35 bits until 2035, the depth takes 18: both
-- fit the 53 bits of a double. A tick that is still to come pins the block until then.
local TICK_MS, EPOCH_TICKS, DEPTHS = 10, 173568960000, 262144

local function score_of(ms, depth)
  return digits((math.floor(ms / TICK_MS) - EPOCH_TICKS) * DEPTHS - math.min(depth, DEPTHS - 1))
end

local function is_pinned(score)
  return tonumber(score) > (math.floor(now / TICK_MS) - EPOCH_TICKS) * DEPTHS
end

-- A value of more than PART_BYTES lies in several strings, which live and die together.
local PART_BYTES = 4194304

local function value_keys(value_key, size)
  local keys = {value_key}
  for part = 1, math.ceil(size / PART_BYTES) - 1 do keys[part + 1] = value_key .. ':' .. part end
  return keys
end

local function stored_bytes(value_key, size)
  if size <= PART_BYTES then return redis.call('STRLEN', value_key) end
  local sum = 0
  for _, key in ipairs(value_keys(value_key, size)) do sum = sum + redis.call('STRLEN', key) end
  return sum
end

local function drop_value(value_key, size)
  if size <= PART_BYTES then
    redis.call('UNLINK', value_key)
  else
    redis.call('UNLINK', unpack(value_keys(value_key, size)))
  end
end

-- Accounts: what a tenant holds and may hold, read once; and what this script changes of it.
local accounts, totals = {}, nil

local function account(tenant)
  local found = accounts[tenant]
  if not found then
    local held = redis.call('HMGET', usage, 'u:' .. tenant, 'p:' .. tenant)
    local bounds = redis.call(
      'HMGET', limits, tenant, '*', 'o:' .. tenant, 'o:*', 'r:' .. tenant, 'w:' .. tenant, 'w:*')
    found = {
      used = tonumber(held[1] or '') or 0,
      pending = tonumber(held[2] or '') or 0,
      used_before = tonumber(held[1] or '') or 0,
      pending_before = tonumber(held[2] or '') or 0,
      limit = tonumber(bounds[1] or bounds[2] or '') or math.huge,
      refuses = (bounds[3] or bounds[4]) == 'refuse',
      reserved = tonumber(bounds[5] or '') or 0,
      weight = tonumber(bounds[6] or bounds[7] or '') or 1,
    }
    accounts[tenant] = found
  end
  return found
end

local function whole()
  if not totals then
    local held = redis.call('HMGET', usage, 'U', 'P')
    local used, pending = tonumber(held[1] or '') or 0, tonumber(held[2] or '') or 0
    local capacity = tonumber(redis.call('HGET', limits, ':capacity') or '') or math.huge
    totals = {used = used, pending = pending, used_before = used, pending_before = pending, capacity = capacity}
  end
  return totals
end

local function add_used(tenant, bytes)
  local of = account(tenant)
  of.used, whole().used = of.used + bytes, whole().used + bytes
end

local function add_pending(tenant, bytes)
  local of = account(tenant)
  of.pending, whole().pending = of.pending + bytes, whole().pending + bytes
end

local function standing(of, more)
  return (of.used + of.pending + more - of.reserved) / of.weight
end

local function write_sum(field, before, after)
  if after ~= before and redis.call('HINCRBY', usage, field, digits(after - before)) == 0 then
    redis.call('HDEL', usage, field)
  end
end

-- Members for sorted sets that many blocks of a call go into, added in one command each: score, member, score, member, ...
local listed = {}

local function list(zset, score, member)
  local of = listed[zset]
  if not of then
    of = {}
    listed[zset] = of
  end
  of[#of + 1], of[#of + 2] = score, member
end

-- Values that became readable and values that are readable no longer, by this call.
local committed, dropped = {}, {}

local function close_books()
  note_changes(changes, '', 0, committed, dropped)
  write_told(why_list)
  for zset, pairs_of in pairs(listed) do redis.call('ZADD', zset, unpack(pairs_of)) end
  for tenant, of in pairs(accounts) do
    if of.used ~= of.used_before or of.pending ~= of.pending_before then
      write_sum('u:' .. tenant, of.used_before, of.used)
      write_sum('p:' .. tenant, of.pending_before, of.pending)
      if of.used + of.pending == 0 then
        redis.call('ZREM', standings, tenant)
      else
        redis.call('ZADD', standings, tostring(standing(of, 0)), tenant)
      end
    end
  end
  if totals then
    write_sum('U', totals.used_before, totals.used)
    write_sum('P', totals.pending_before, totals.pending)
  end
end

-- Equal parts of a size, to the byte: the first tenants pay one more where it does not come out even.
local function part_of(size, n_tenants, i)
  return math.floor(size / n_tenants) + (i <= size % n_tenants and 1 or 0)
end

local function charge(record, sign)
  for i, tenant in ipairs(record[TENANTS]) do
    add_used(tenant, sign * part_of(record[SIZE], #record[TENANTS], i))
  end
end

local function index_of(tenants, tenant)
  for i, name in ipairs(tenants) do
    if name == tenant then return i end
  end
  return nil
end

-- For who asks why: it is about to happen to a tenant's block; for_tenant: who is to have the room, or ''.
local NOBODY = {used = 0, pending = 0, limit = math.huge, reserved = 0, weight = 1}
-- Per tenant the block that was found to be its oldest, and its score: mostly that is the one that is told of.
local oldest_hash, oldest_score = {}, {}

local function note(what, hash, record, tenant, why, for_tenant)
  local score = oldest_hash[tenant] == hash and oldest_score[tenant] or redis.call('ZSCORE', blocks_prefix .. tenant, hash)
  local idle = score and math.max(0, now - (math.ceil(tonumber(score) / DEPTHS) + EPOCH_TICKS) * TICK_MS) or -1
  local of, other = tenant ~= '' and account(tenant) or NOBODY, for_tenant ~= '' and account(for_tenant) or NOBODY
  tell({
    now_us, what, hash, tenant, why, for_tenant, record[SIZE], idle,
    of.used + of.pending, bound(of.limit), of.reserved, of.weight,
    other.used + other.pending, bound(other.limit), other.reserved, other.weight,
    whole().used + whole().pending, bound(whole().capacity)})
end

-- Likewise to all whose block it is.
local function note_all(what, hash, record, why)
  for _, tenant in ipairs(record[TENANTS]) do note(what, hash, record, tenant, why, '') end
  if #record[TENANTS] == 0 then note(what, hash, record, '', why, '') end
end

-- Forgets value, state and charge of a record, whichever state it is in; its owners stay.
local function drop_stored(hash, record)
  if record[STATE] == RESERVED then
    add_pending(record[TENANTS][1], -record[SIZE])
    redis.call('ZREM', reservations, hash)
  elseif record[STATE] == COMMITTED then
    charge(record, -1)
    for _, tenant in ipairs(record[TENANTS]) do redis.call('ZREM', blocks_prefix .. tenant, hash) end
    dropped[#dropped + 1] = hash
  end
  drop_value(value_prefix .. hash, record[SIZE])
  record[STATE], record[SIZE], record[TENANTS], record[DEPTH], record[EXPIRES], record[PARENT] = NONE, 0, {}, 0, 0, ''
  write_record(meta_prefix .. hash, record)
end

-- One more tenant is charged for a committed value. The caller has seen to its room.
local function join(tenant, hash, record, score)
  charge(record, -1)
  table.insert(record[TENANTS], tenant)
  charge(record, 1)
  write_record(meta_prefix .. hash, record)
  redis.call('ZADD', blocks_prefix .. tenant, score, hash)
end

-- What joining would charge a tenant.
local function part_for_one_more(record)
  local n = #record[TENANTS] + 1
  return part_of(record[SIZE], n, n)
end

-- A committed block out of a tenant's sorted set, oldest first, for whom keeps(hash, record) is false; or nil. At most
-- LOOKS_MAX are looked at in a call of the script; what is pinned ends the search, since all that follow are too.
local LOOKS_MAX = 128
local looks, passed = 0, {}

local function oldest(tenant, keeps)
  local zset = blocks_prefix .. tenant
  while looks < LOOKS_MAX do
    looks = looks + 1
    local at = passed[tenant] or 0
    local found = redis.call('ZRANGE', zset, at, at, 'WITHSCORES')
    if #found == 0 or is_pinned(found[2]) then return nil end
    local record = read_record(meta_prefix .. found[1])
    if record[STATE] ~= COMMITTED or not index_of(record[TENANTS], tenant) then
      redis.call('ZREM', zset, found[1])  -- Its record is gone: the server lost it.
    elseif keeps and keeps(found[1], record) then
      passed[tenant] = at + 1
    else
      oldest_hash[tenant], oldest_score[tenant] = found[1], found[2]
      return found[1], record
    end
  end
  return nil
end

local function keeps_shared(_, record)
  return #record[TENANTS] > 1
end

-- The tenant lets go of a block: the others take its part over, the last one out deletes. Who has no room for its larger
-- part below its limit gives its oldest unshared block for it, or lets go too. what, why, for_tenant: see note().
local function let_go(tenant, hash, record, what, why, for_tenant)
  local leaving = {[tenant] = true}
  local left
  repeat
    left = {}
    for _, name in ipairs(record[TENANTS]) do
      if not leaving[name] then left[#left + 1] = name end
    end
    local all_have_room = true
    for i, name in ipairs(left) do
      local of = account(name)
      local more = part_of(record[SIZE], #left, i)
        - part_of(record[SIZE], #record[TENANTS], index_of(record[TENANTS], name))
      if of.used + of.pending + more > of.limit then
        local given, theirs = oldest(name, keeps_shared)
        if given then
          note('evicted', given, theirs, name, 'larger part', '')
          drop_stored(given, theirs)
        end
        if of.used + of.pending + more > of.limit then
          leaving[name], all_have_room = true, false
        end
      end
    end
  until all_have_room
  for name in pairs(leaving) do
    note(#left == 0 and what or 'parted', hash, record, name, name == tenant and why or 'larger part', for_tenant)
  end
  if #left == 0 then
    drop_stored(hash, record)
    return
  end
  charge(record, -1)
  for name in pairs(leaving) do redis.call('ZREM', blocks_prefix .. name, hash) end
  record[TENANTS] = left
  charge(record, 1)
  write_record(meta_prefix .. hash, record)
end
