-- Pauses the queue of a namespace, or lets it go on. Stands behind publish_channel.lua. Paused, its shards have no watcher: jobs are kept, and live
-- requests pass them.
--
-- KEYS[1] paused   KEYS[2..] watch of each shard (in a cluster: of none; the caller deletes them)   ARGV[1] 1 = pause   ARGV[2] channel prefix
-- Returns 1 if that changed anything
-- O(shards). Idempotent, but never sent again by itself: a copy that came late would undo what was said after it. The watches go at once, so that no further job is offered a lock; workers hear of it, and
-- take none while it is paused.
local has_changed
if ARGV[1] == '1' then
  -- Also without room, where it may be what is wanted: see renew.lua.
  redis.call('PERSIST', KEYS[1])
  has_changed = redis.call('SETNX', KEYS[1], '1')
  redis.call('DEL', unpack(KEYS, 2))
else
  has_changed = redis.call('DEL', KEYS[1])
end
redis.call(PUBLISH_COMMAND, (SHARD_CHANNEL_PREFIX or ARGV[2]) .. 'e', 'workers')
return has_changed
