-- What a server gives its scripts besides Lua itself: redis.call, MessagePack, and the pieces of struct and bit in use.
-- do_command(words) and float_bits(number) come from Python.

local byte, char, floor, concat = string.byte, string.char, math.floor, table.concat

local function integer_bytes(n, size)
  local out = {}
  for i = size, 1, -1 do
    out[i] = char(n % 256)
    n = floor(n / 256)
  end
  return concat(out)
end

local pack_value

local function pack_number(n)
  if n ~= floor(n) or n >= 2 ^ 63 or n < -2 ^ 63 then return float_bits(n) end
  if n >= 0 then
    if n <= 127 then return char(n) end
    if n <= 0xff then return '\204' .. char(n) end
    if n <= 0xffff then return '\205' .. integer_bytes(n, 2) end
    if n <= 0xffffffff then return '\206' .. integer_bytes(n, 4) end
    return '\207' .. integer_bytes(n, 8)
  end
  if n >= -32 then return char(256 + n) end
  if n >= -128 then return '\208' .. char(256 + n) end
  if n >= -32768 then return '\209' .. integer_bytes(65536 + n, 2) end
  if n >= -2147483648 then return '\210' .. integer_bytes(4294967296 + n, 4) end
  error('no script packs such numbers')
end

local function pack_string(s)
  local n = #s
  if n < 32 then return char(160 + n) .. s end
  if n <= 0xff then return '\217' .. char(n) .. s end
  if n <= 0xffff then return '\218' .. integer_bytes(n, 2) .. s end
  return '\219' .. integer_bytes(n, 4) .. s
end

local function pack_array(t)
  local n = #t
  local out = {n < 16 and char(144 + n) or ('\220' .. integer_bytes(n, 2))}
  for i = 1, n do out[i + 1] = pack_value(t[i]) end
  return concat(out)
end

pack_value = function(value)
  local kind = type(value)
  if kind == 'number' then return pack_number(value) end
  if kind == 'string' then return pack_string(value) end
  if kind == 'boolean' then return value and '\195' or '\194' end
  if kind == 'table' then return pack_array(value) end
  return '\192'
end

local function read_integer(s, at, size)
  local n = 0
  for i = at, at + size - 1 do n = n * 256 + byte(s, i) end
  return n
end

local unpack_value

local function unpack_array(s, at, n)
  local out = {}
  for i = 1, n do out[i], at = unpack_value(s, at) end
  return out, at
end

local function unpack_map(s, at, n)
  local out, key = {}, nil
  for _ = 1, n do
    key, at = unpack_value(s, at)
    out[key], at = unpack_value(s, at)
  end
  return out, at
end

local function unpack_string(s, at, n)
  if at + n - 1 > #s then error('Missing bytes in input.') end
  return s:sub(at, at + n - 1), at + n
end

unpack_value = function(s, at)
  local first = byte(s, at)
  if not first then error('Missing bytes in input.') end
  at = at + 1
  if first < 128 then return first, at end
  if first < 144 then return unpack_map(s, at, first - 128) end
  if first < 160 then return unpack_array(s, at, first - 144) end
  if first < 192 then return unpack_string(s, at, first - 160) end
  if first >= 224 then return first - 256, at end
  if first == 192 then return nil, at end
  if first == 194 or first == 195 then return first == 195, at end
  if first >= 204 and first <= 207 then
    local size = 2 ^ (first - 204)
    return read_integer(s, at, size), at + size
  end
  if first >= 208 and first <= 211 then
    local size = 2 ^ (first - 208)
    local n = read_integer(s, at, size)
    if n >= 2 ^ (8 * size - 1) then n = n - 2 ^ (8 * size) end
    return n, at + size
  end
  if first == 202 then return bits_float(s:sub(at, at + 3)), at + 4 end
  if first == 203 then return bits_float(s:sub(at, at + 7)), at + 8 end
  if first == 217 then return unpack_string(s, at + 1, read_integer(s, at, 1)) end
  if first == 218 then return unpack_string(s, at + 2, read_integer(s, at, 2)) end
  if first == 219 then return unpack_string(s, at + 4, read_integer(s, at, 4)) end
  if first == 220 then return unpack_array(s, at + 2, read_integer(s, at, 2)) end
  if first == 221 then return unpack_array(s, at + 4, read_integer(s, at, 4)) end
  if first == 222 then return unpack_map(s, at + 2, read_integer(s, at, 2)) end
  error('Bad data format in input.')
end

cmsgpack = {
  pack = function(value) return pack_value(value) end,
  unpack = function(s) return (unpack_value(s, 1)) end,
}

struct = {
  unpack = function(format, s, at)
    assert(format == '>I4I4')
    return read_integer(s, at, 4), read_integer(s, at + 4, 4), at + 8
  end,
}

redis = {call = do_command}

return function(script, keys, args)
  KEYS, ARGV = keys, args
  return script()
end
