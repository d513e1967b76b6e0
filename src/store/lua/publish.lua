-- Sends a message by the channels of a shard. Stands behind publish_channel.lua.
--
-- KEYS[1] a key of the shard   ARGV[1] prefix of the namespace's channels   [2] channel: 'w:<node>' or 'e'   [3] text
-- Returns how many hear it, as far as the node knows. O(those who hear it)
-- It is a hint: one that is sent twice, or to nobody, does no harm.
return redis.call(PUBLISH_COMMAND, (SHARD_CHANNEL_PREFIX or ARGV[1]) .. ARGV[2], ARGV[3])
