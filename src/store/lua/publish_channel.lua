-- How messages are sent: PUBLISH is the command, OWN what its channels begin with, nil where they are the namespace's.
-- Stands before all that sends any.
--
-- In a cluster a call is about one shard and names a key that is never there (keys.rs). There messages go by the
-- shard's own channels if the server has such (7.0): its node alone has to do with them, where a plain message goes
-- to all nodes, and the number of those who hear it is right. The server decides, and nobody else: whoever listens
-- finds out from the same one what it has (listen).
local IS_CLUSTER, SHARD_CHANNEL_PREFIX = string.sub(KEYS[#KEYS], -7) == '}:never', nil
local PUBLISH_COMMAND = 'PUBLISH'
-- That there is a number of its version says enough: 7.0 was the first to tell it.
if IS_CLUSTER and redis.REDIS_VERSION_NUM then PUBLISH_COMMAND, SHARD_CHANNEL_PREFIX = 'SPUBLISH', string.match(KEYS[1], '^[^}]*}:') end
