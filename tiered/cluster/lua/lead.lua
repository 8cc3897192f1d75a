-- lead.lua: who leads: take or lengthen the lease of the leader, look at it, or end it.
-- KEYS[1] the leader, string with a time to live: MessagePack array {token, replica, url}   KEYS[2] the last token given out
-- ARGV[1] 'ask', 'look' or 'resign'   ARGV[2] replica, its name in this life   ARGV[3] its URL   ARGV[4] lease, ms
-- Returns {token, replica, url, lease left in ms} of who leads afterwards; {0} for nobody. A token is greater than every one
-- given out before. A server that restarted empty, or from an earlier snapshot, has forgotten the last one, so none is below
-- its clock's microseconds, much as with epochs; and whoever led must take the lease anew, since nobody knows what was
-- forgotten with it.

local held = redis.call('GET', KEYS[1])
local leader = held and cmsgpack.unpack(held)
local is_own = leader and leader[2] == ARGV[2]
if ARGV[1] == 'resign' then
  if is_own then redis.call('DEL', KEYS[1]) end
  return {0}
end
if ARGV[1] == 'ask' then
  if is_own then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  elseif not leader then
    local now = redis.call('TIME')
    local token = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, now[1] * 1000000 + now[2])
    redis.call('SET', KEYS[2], string.format('%.0f', token))
    leader = {token, ARGV[2], ARGV[3]}
    redis.call('SET', KEYS[1], cmsgpack.pack(leader), 'PX', ARGV[4])
  end
end
if not leader then return {0} end
-- PTTL rounds: the lease was running a moment ago, so it has a millisecond at least.
return {leader[1], leader[2], leader[3], math.max(redis.call('PTTL', KEYS[1]), 1)}
