-- Registers the heartbeat of a process that limits rates, or removes the process, and counts the
-- live ones.
--
-- Input:
--   KEYS[1]  limiters (ZSET), node -> deadline, ms
--   ARGV[1]  node
--   ARGV[2]  lease, ms; 0 removes the node
-- Output: number of live limiters, including this one.
-- Complexity: O(log n).
-- The key expires with its latest lease.
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local lease_ms = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms))
if lease_ms > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + lease_ms), ARGV[1])
  if redis.call('PTTL', KEYS[1]) < lease_ms then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return redis.call('ZCARD', KEYS[1])
