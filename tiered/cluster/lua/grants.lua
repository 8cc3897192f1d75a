-- grants.lua: all access tokens and the server's time, unless the caller knows them already.
-- KEYS[1] access tokens, hash     ARGV[1] the revision the caller knows, or empty
-- Returns {now in ms, revision, entries or false when the revision is the known one}.  Changes nothing.

local time = redis.call('TIME')
local revision = redis.call('HGET', KEYS[1], ':revision') or '0'
local entries = revision ~= ARGV[1] and redis.call('HGETALL', KEYS[1])
return {time[1] * 1000 + math.floor(time[2] / 1000), revision, entries}
