-- audit.lua: compare some blocks' records with what the server holds, and if so asked settle what does not agree.
-- KEYS[1..9] as in books.lua, then the meta of each block
-- ARGV[1] 1: settle, 0: only look    then for each block: hash, number of a part of its value that was met (0: the first)
-- Returns {expired reservations settled, values lost, values without a record, charges and reservations re-listed,
--   committed blocks seen, bytes of their values, {orphan, its parent, ...}, {tenant, bytes charged for those blocks, how many
--   they are, tenant, ...}}.
-- An orphan is a committed block whose parent is neither stored in this partition nor held hot by a node, so that, if no
-- other partition has the parent, nobody can match it. It stays: the parent may be on its way. Keeps I5.

local expired, lost, stray, relisted, seen, bytes = 0, 0, 0, 0, 0, 0
local orphans, charged, n_of = {}, {}, {}
local settles = ARGV[1] == '1'
local function settle(hash, record, what, why)
  if not settles then return end
  if what then note_all(what, hash, record, why) end
  drop_stored(hash, record)
end

-- The strings of a value of which nobody knows how large it was: those from the first one on, and those before the part that
-- was met, each until one is missing. Other parts are met by themselves.
local function stray_keys(value_key, met)
  local keys, bytes, part = {}, 0, 0
  local function is_there(n)
    local key = n == 0 and value_key or value_key .. ':' .. n
    local length = redis.call('STRLEN', key)
    if length > 0 then keys[#keys + 1], bytes = key, bytes + length end
    return length > 0
  end
  while is_there(part) do part = part + 1 end
  while met > part and is_there(met) do met = met - 1 end
  return keys, bytes
end

for i = 2, #ARGV, 2 do
  local hash = ARGV[i]
  local record = read_record(meta_prefix .. hash)
  local stored = record[STATE] ~= NONE and stored_bytes(value_prefix .. hash, record[SIZE])
  if not stored then
    local keys, stray_bytes = stray_keys(value_prefix .. hash, tonumber(ARGV[i + 1]))
    if #keys > 0 then
      record[SIZE] = stray_bytes
      settle(hash, record, 'stray', 'no record names it')
      if settles then redis.call('UNLINK', unpack(keys)) end
      stray = stray + 1
    end
  elseif record[STATE] == RESERVED then
    if record[EXPIRES] <= now then
      settle(hash, record)
      expired = expired + 1
    elseif not redis.call('ZSCORE', reservations, hash) then
      if settles then redis.call('ZADD', reservations, digits(record[EXPIRES]), hash) end
      relisted = relisted + 1
    end
  elseif stored ~= record[SIZE] then
    settle(hash, record, 'lost', 'the server lost it')
    lost = lost + 1
  else
    local parent = record[PARENT] ~= '' and read_record(meta_prefix .. record[PARENT])
    if parent and parent[STATE] == NONE and #parent[OWNERS] == 0 then
      orphans[#orphans + 1], orphans[#orphans + 2] = hash, record[PARENT]
    end
    seen, bytes = seen + 1, bytes + stored
    for place, tenant in ipairs(record[TENANTS]) do
      charged[tenant] = (charged[tenant] or 0) + part_of(record[SIZE], #record[TENANTS], place)
      n_of[tenant] = (n_of[tenant] or 0) + 1
      if not redis.call('ZSCORE', blocks_prefix .. tenant, hash) then
        if settles then redis.call('ZADD', blocks_prefix .. tenant, score_of(now, record[DEPTH]), hash) end
        relisted = relisted + 1
      end
    end
  end
end
close_books()
local parts = {}
for tenant, part in pairs(charged) do
  parts[#parts + 1], parts[#parts + 2], parts[#parts + 3] = tenant, digits(part), n_of[tenant]
end
return {expired, lost, stray, relisted, seen, digits(bytes), orphans, parts}
