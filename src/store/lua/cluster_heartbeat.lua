-- Heartbeat of a worker in a cluster, first part: registers the worker, or removes it.
-- cluster_shard_watch_lease.lua does the part of each shard. worker_registry.lua precedes this
-- file.
--
-- Input:
--   KEYS[1]  workers (STRING)
--   KEYS[2]  paused (STRING)
--   ARGV[1]  node
--   ARGV[2]  lease, ms; 0 if the worker leaves
-- Output: {paused, live, changed, peers, ms}
--   paused   1 while jobs are paused
--   live     number of live workers
--   changed  1 if this worker has joined or left, or another one has died
--   peers    other live workers, at most 100
--   ms       time until the lease of the next worker by name ends, which this one observes; -1 if
--            there is none
-- Complexity: O(workers).
-- Idempotent, except that a repeated call does not report a change again.
-- The caller notifies the other workers of a change. If it is gone, they see the change at their
-- next heartbeat.
local peers, live_count, has_changed, successor_ms, registry, latest_ms =
  update_registry(redis.call('GET', KEYS[1]) or '')
-- Works at `maxmemory` too: see heartbeat_and_shard_assignment.lua.
redis.call('PERSIST', KEYS[1])
if live_count > 0 then
  redis.call('SET', KEYS[1], registry, 'PX', integer(math.max(latest_ms, lease_ms)))
else
  redis.call('DEL', KEYS[1])
end
return {
  redis.call('EXISTS', KEYS[2]), live_count, has_changed and 1 or 0, peers, integer(successor_ms)
}
