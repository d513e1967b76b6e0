-- Says that a worker, or a limiter, lives, and counts the living.
--
-- KEYS[1] workers or limiters   ARGV[1] node   ARGV[2] lease, ms; 0 = this one leaves
-- ARGV[3] channel prefix, or '' to tell nobody
-- The other workers are told when one comes or leaves.
-- Returns the number of live ones, this one included
-- O(log n). The key lives as long as its latest lease.
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local lease_ms, changed_count = tonumber(ARGV[2]), 0
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms))
if lease_ms > 0 then
  changed_count = redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + lease_ms), ARGV[1])
  if redis.call('PTTL', KEYS[1]) < lease_ms then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
else
  changed_count = redis.call('ZREM', KEYS[1], ARGV[1])
end
if changed_count == 1 and ARGV[3] ~= '' then redis.call('PUBLISH', ARGV[3] .. 'e', 'workers') end
return redis.call('ZCARD', KEYS[1])
