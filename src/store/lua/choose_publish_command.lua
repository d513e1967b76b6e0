-- Prelude of all scripts that publish messages, in front of their other preludes: chooses the
-- command and the channels by which messages are sent.
--
-- Provides:
--   IS_CLUSTER            true in a cluster
--   PUBLISH_COMMAND       PUBLISH or SPUBLISH
--   SHARD_CHANNEL_PREFIX  start of the names of the shard's channels; nil if messages are sent on
--                         the channels of the namespace
-- Expects: in a cluster, keys of one shard only, the last of which is the one that never exists
-- (`slot_guard_key` in key_names.rs).
--
-- A cluster from Redis 7.0 on has shard channels. Only the cluster node of the shard handles their
-- messages, while PUBLISH sends one to all nodes, and the number of receivers is exact. The server
-- alone decides: a subscriber asks the same server, so processes need not agree on it.
local IS_CLUSTER, SHARD_CHANNEL_PREFIX = string.sub(KEYS[#KEYS], -7) == '}:never', nil
local PUBLISH_COMMAND = 'PUBLISH'
-- A version number is proof enough: Redis 7.0 was the first to have one.
if IS_CLUSTER and redis.REDIS_VERSION_NUM then
  PUBLISH_COMMAND, SHARD_CHANNEL_PREFIX = 'SPUBLISH', string.match(KEYS[1], '^[^}]*}:')
end
