-- In a cluster, the first part of heartbeat.lua: a worker's sign of life. What is about each shard is in shard_watch.lua.
--
-- KEYS[1] workers   KEYS[2] paused   ARGV[1] node   ARGV[2] lease, ms; 0 = it leaves
-- Returns {1 = paused, number of living workers, 1 if this one is new or has left, or one has died, other living workers, at most 100, ms
-- until the lease ends of the one of them that this one looks after, or -1}
-- O(workers). Idempotent, but that a repeated call does not tell again who has come or gone: the caller tells the
-- others, and if he is gone, they hear of it at their next beat.
local others, live_count, has_changed, successor_ms, registry, latest_ms = update_registry(redis.call('GET', KEYS[1]) or '')
-- Also without room: see heartbeat.lua.
redis.call('PERSIST', KEYS[1])
if live_count > 0 then
  redis.call('SET', KEYS[1], registry, 'PX', integer(math.max(latest_ms, lease_ms)))
else
  redis.call('DEL', KEYS[1])
end
return {redis.call('EXISTS', KEYS[2]), live_count, has_changed and 1 or 0, others, integer(successor_ms)}
