-- Registers the name of a task queue, so that operators can list the queues of a namespace.
--
-- Input:
--   KEYS[1]  queues (ZSET), name -> time of the registration, ms
--   ARGV[1]  name
--   ARGV[2]  number of names that are kept; the oldest are removed
-- Output: 1 if the name is new, else 0.
-- Complexity: O(log n + removed).
-- Idempotent. queues gone: a name is listed again when a process uses its queue first.
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local is_new = redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms), ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[2]))
return is_new
