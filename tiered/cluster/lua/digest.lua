-- digest.lua: what a life has announced in one partition, in short; scripts.py prepends it to the scripts of the directory.
-- The hash is n: how many hashes its set has   x: their sum, 16 hex digits: bytes 9 to 16 of each, exclusive-or'ed
--   q: number of the last announcement. It ends with the set's last member.

local function sum_into(high, low, hashes)
  for _, hash in ipairs(hashes) do
    local more_high, more_low = struct.unpack('>I4I4', hash, 9)
    high, low = bit.bxor(high, more_high), bit.bxor(low, more_low)
  end
  return high, low
end

-- After the set has changed. number: 0 to leave it. count and sum: '' or, from who knows better, what there should be; they
-- replace a digest that was lost or is wrong, if the set has as many members.
local function note_digest(set, digest, added, dropped, number, count, sum)
  local n = redis.call('SCARD', set)
  if n == 0 then
    redis.call('DEL', digest)
    return
  end
  local known = redis.call('HMGET', digest, 'n', 'x')
  local before = tonumber(known[1] or '') or 0
  local text = known[2] or '0000000000000000'
  local high, low = tonumber(text:sub(1, 8), 16), tonumber(text:sub(9), 16)
  high, low = sum_into(high, low, added)
  high, low = sum_into(high, low, dropped)
  local after = before + #added - #dropped
  text = bit.tohex(high) .. bit.tohex(low)
  if count ~= '' and n == tonumber(count) then after, text = n, sum end
  if number == 0 then
    redis.call('HSET', digest, 'n', after, 'x', text)
  else
    redis.call('HSET', digest, 'n', after, 'x', text, 'q', digits(number))
  end
end
