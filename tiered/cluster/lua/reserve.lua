-- reserve.lua: set bytes aside for values of one tenant, or say for each why not.
-- KEYS[1..9] as in books.lua, then the meta of each block
-- ARGV[1] tenant   ARGV[2] time to live, ms   then for each block: hash, size in bytes, depth, parent's hash
-- Returns for each block 1 reserved, 2 reserved after evicting own blocks, 3 already there, 4 pending elsewhere,
--   5 refused: the tenant's limit, 6 refused: the tier is full, 7 reserved after reclaiming from others.
-- Keeps I5 (used + pending <= limit, for every tenant and for the tier) and I9: at most 16 expired reservations are settled
-- in a call, and LOOKS_MAX blocks looked at. A tenant that owes more than that (a lowered limit) is refused, and the next
-- calls come nearer. A block never takes the place of one that it hangs on.

local SETTLED_MAX = 16
local tenant, ttl_ms = ARGV[1], tonumber(ARGV[2])

for _, expired in ipairs(redis.call('ZRANGEBYSCORE', reservations, '-inf', now, 'LIMIT', 0, SETTLED_MAX)) do
  local record = read_record(meta_prefix .. expired)
  if record[STATE] == RESERVED then
    drop_stored(expired, record)
  else
    redis.call('ZREM', reservations, expired)
  end
end

-- The blocks that the present one hangs on, as far as anybody asked; tip is the deepest whose line is not in there yet.
local line, tip, tip_depth, before = {}, '', -1, ''

local function begin_line(hash, depth, parent)
  if parent ~= before and not line[parent] then line, tip, tip_depth = {}, parent, depth - 1 end
  line[before] = parent == before or nil
  before = hash
end

local function is_in_line(hash, record)
  while tip ~= '' and tip_depth >= record[DEPTH] do
    looks = looks + 1
    if looks > LOOKS_MAX then return true end
    line[tip] = true
    tip, tip_depth = read_record(meta_prefix .. tip)[PARENT], tip_depth - 1
  end
  return line[hash] == true
end

local function pays(giver, why)
  local hash, record = oldest(giver, is_in_line)
  if not hash then return false end
  let_go(giver, hash, record, 'evicted', why, tenant)
  return true
end

-- Makes room below the tenant's limit. Evicts only where there is enough of its own to evict.
local function fits_limit(of, more)
  local over = of.used + of.pending + more - of.limit
  if over <= 0 then return true, false end
  if of.refuses or over > of.used then return false, false end
  while of.used + of.pending + more > of.limit do
    if not pays(tenant, 'own limit') then return false, true end
  end
  return true, true
end

-- Who gives when the tier is full: the tenant furthest above its share, the asker counted with what it asks for; between
-- equals the asker. Nobody gives what is reserved for it to another.
local function giver_for(of, more)
  local mine = standing(of, more)
  for name in pairs(accounts) do
    local theirs = accounts[name]
    if theirs.used + theirs.pending > 0 then
      redis.call('ZADD', standings, tostring(standing(theirs, 0)), name)
    end
  end
  local highest = redis.call('ZREVRANGE', standings, 0, 7)
  for _, name in ipairs(highest) do
    local theirs = account(name)
    if name == tenant or standing(theirs, 0) <= mine then break end
    if theirs.used + theirs.pending - theirs.reserved >= more and oldest(name, is_in_line) then return name end
  end
  return (of.used > 0 and not of.refuses) and tenant or nil
end

local function fits_tier(of, more)
  local own, others = false, false
  while whole().used + whole().pending + more > whole().capacity do
    local over = whole().used + whole().pending + more - whole().capacity
    local giver = over <= whole().used and giver_for(of, more)
    if not giver or not pays(giver, 'room') then return false, own, others end
    if giver == tenant then own = true else others = true end
  end
  return true, own, others
end

local function refuse(answer, hash, size)
  note('refused', hash, {[SIZE] = size}, tenant, answer == 5 and 'quota' or 'full', '')
  return answer
end

local function reserve(hash, size, depth, parent)
  local meta_key, value_key = meta_prefix .. hash, value_prefix .. hash
  local of, record = account(tenant), read_record(meta_prefix .. hash)
  begin_line(hash, depth, parent)
  local own_before = false
  if record[STATE] == COMMITTED and stored_bytes(value_key, record[SIZE]) == record[SIZE] then
    if index_of(record[TENANTS], tenant) then return 3 end
    local fits, evicted = fits_limit(of, part_for_one_more(record))
    record, own_before = read_record(meta_key), evicted
    if record[STATE] == COMMITTED then
      if fits then join(tenant, hash, record, score_of(now, record[DEPTH])) end
      return 3
    end
    -- Else making room has cost the block itself: whoever paid for it gave it for its larger part of another one.
  elseif record[STATE] == COMMITTED then
    note_all('lost', hash, record, 'the server lost it')
    drop_stored(hash, record)  -- Settle, and go on as if it never was.
  elseif record[STATE] == RESERVED then
    if record[EXPIRES] > now then return 4 end
    drop_stored(hash, record)
  end
  if size > of.limit then return refuse(5, hash, size) end
  if size > whole().capacity then return refuse(6, hash, size) end
  local fits, own = fits_limit(of, size)
  if not fits then return refuse(5, hash, size) end
  local room, own_too, others = fits_tier(of, size)
  if not room then return refuse(6, hash, size) end
  record = read_record(meta_key)
  record[STATE], record[SIZE], record[TENANTS], record[DEPTH] = RESERVED, size, {tenant}, depth
  record[EXPIRES], record[PARENT] = now + ttl_ms, parent
  drop_value(value_key, size)  -- What an earlier writer left behind was never committed.
  write_record(meta_key, record)
  list(reservations, digits(record[EXPIRES]), hash)
  add_pending(tenant, size)
  if others then return 7 end
  return (own_before or own or own_too) and 2 or 1
end

local answers = {}
for i = 3, #ARGV, 4 do
  answers[#answers + 1] = reserve(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3])
end
close_books()
return answers
