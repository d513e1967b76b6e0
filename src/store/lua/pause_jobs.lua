-- Pauses the jobs of a namespace, or resumes them. While paused, its shards have no watch: jobs are
-- kept, and live requests overtake them. choose_publish_command.lua precedes this file.
--
-- Input:
--   KEYS[1]  paused (STRING)
--   KEYS[2]  and the following: watch of each shard (STRING); in a cluster the caller deletes the
--            watches instead
--   ARGV[1]  1 to pause, 0 to resume
--   ARGV[2]  prefix of the namespace's channels
-- Output: 1 if this changed anything, else 0.
-- Complexity: O(shards).
-- Idempotent, but never resent: a late copy would undo a later call.
-- The watches are deleted at once, so no further job gets an offer. Workers are notified, and take
-- no shard during the pause.
local has_changed
if ARGV[1] == '1' then
  -- Works at `maxmemory` too, where a pause may be the remedy: see renew.lua.
  redis.call('PERSIST', KEYS[1])
  has_changed = redis.call('SETNX', KEYS[1], '1')
  redis.call('DEL', unpack(KEYS, 2))
else
  has_changed = redis.call('DEL', KEYS[1])
end
redis.call(PUBLISH_COMMAND, (SHARD_CHANNEL_PREFIX or ARGV[2]) .. 'e', 'workers')
return has_changed
