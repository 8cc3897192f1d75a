-- grant.lua: store what a bearer token allows, for whom and until when.
-- KEYS[1] access tokens, hash
-- ARGV[1] SHA-256 of the token, hex   ARGV[2] id   ARGV[3] tenant   ARGV[4] label   ARGV[5] ms it lives, 0: no end
-- ARGV[6] how many a tenant may have
-- Returns the JSON stored, or the number of the tenant's tokens when it has so many already.  Drops expired ones.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local tenant, lives, most = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[6])
local entries = redis.call('HGETALL', KEYS[1])
local held = 0
for i = 1, #entries, 2 do
  if entries[i] ~= ':revision' then
    local grant = cjson.decode(entries[i + 1])
    if grant.expires_ms and grant.expires_ms <= now then
      redis.call('HDEL', KEYS[1], entries[i])
    elseif grant.tenant == tenant then
      held = held + 1
    end
  end
end
if held >= most then return held end
local grant = {id = ARGV[2], tenant = tenant, label = ARGV[4], created_ms = now}
if lives > 0 then grant.expires_ms = now + lives end
local text = cjson.encode(grant)
redis.call('HSET', KEYS[1], ARGV[1], text)
redis.call('HSET', KEYS[1], ':revision', time[1] .. '.' .. time[2])
return text
