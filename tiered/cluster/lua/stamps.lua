-- stamps.lua: find the stamps of lives that do not list the block, and if so asked remove them from the blocks' records.
-- KEYS[1] prefix of the lives' sets (whose sets is only known from the records; same hash tag)   then the meta of each block
-- ARGV[1] 1: remove, 0: only count
-- Returns how many. A life lists what it stamps in the same call (announce.lua), so these are what a server that lost keys
-- left behind; nobody else would ever find them.

local lists = {}

local function is_listed(owners, at, hash)
  local set = KEYS[1] .. owners[at] .. ':' .. digits(owners[at + 1])
  if lists[set] == nil then lists[set] = redis.call('EXISTS', set) == 1 end
  return lists[set] and redis.call('SISMEMBER', set, hash) == 1
end

local found = 0
local metas = {unpack(KEYS, 2)}
read_ahead(metas)
for _, meta_key in ipairs(metas) do
  local record, before = read_record(meta_key), found
  for at = #record[OWNERS] - 1, 1, -2 do
    if not is_listed(record[OWNERS], at, meta_key:sub(-HASH_BYTES)) then
      drop_owner(record[OWNERS], at)
      found = found + 1
    end
  end
  if found > before and ARGV[1] == '1' then write_record(meta_key, record) end
end
return found
