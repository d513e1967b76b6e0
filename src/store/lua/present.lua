-- Says that a worker lives, and counts the living.
--
-- KEYS[1] workers   ARGV[1] node   ARGV[2] lease, ms; 0 = this worker leaves
-- Returns the number of live workers, this one included
-- O(log n). The key lives as long as its latest lease.
local time = redis.call('TIME')
local now = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local lease = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if lease > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease), ARGV[1])
  if redis.call('PTTL', KEYS[1]) < lease then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return redis.call('ZCARD', KEYS[1])
