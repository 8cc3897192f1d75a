-- told.lua: what the books took from whom and for whom, for who asks why; scripts.py prepends it, before books.lua, to every
-- script of the ledger. An entry of the partition's list, newest first, is the MessagePack array
--   {server's time in us, what, hash, tenant, why, for_tenant, bytes of the value, ms since its last use or -1,
--    used, limit, reserved and weight of the tenant, used, limit, reserved and weight of for_tenant, used and capacity of the tier}
-- as things stood before it happened; used has what is pending in it, a limit or capacity of -1 is none. All bytes are this
-- partition's part. A block that several tenants let go of is told once for each of them. Keeps I9: the list is bounded.

local TOLD_MAX, TOLD_PER_PUSH = 2000, 1000
local told = {}

local function bound(bytes)
  return bytes == math.huge and -1 or bytes
end

local function tell(entry)
  told[#told + 1] = cmsgpack.pack(entry)
end

local function write_told(list)
  if #told == 0 then return end
  for first = 1, #told, TOLD_PER_PUSH do
    redis.call('LPUSH', list, unpack(told, first, math.min(first + TOLD_PER_PUSH - 1, #told)))
  end
  redis.call('LTRIM', list, 0, TOLD_MAX - 1)
end
