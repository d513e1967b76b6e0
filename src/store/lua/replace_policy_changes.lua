-- Replaces the document of the policies that operators have changed, unless it was replaced
-- meanwhile, and notifies all processes. choose_publish_command.lua precedes this file.
--
-- Input:
--   KEYS[1]  limits (HASH): version, document
--   ARGV[1]  version of the document to be replaced; 0 if there is none
--   ARGV[2]  version of the new document
--   ARGV[3]  new document
--   ARGV[4]  prefix of the namespace's channels
-- Output: 1 if the document is the new one, 0 if another version is there.
-- Complexity: O(1).
-- The key has no TTL: there is one in a namespace, and it holds settings, as `meta` does.
-- The caller is gone: the document stands, and all processes follow it.
-- A second run finds its own document and replies 1. A late copy finds a later version and changes
-- nothing. A missing key has version 0.
local stored = redis.call('HMGET', KEYS[1], 'version', 'document')
local version = stored[1] or '0'
if version == ARGV[1] then
  redis.call('HSET', KEYS[1], 'version', ARGV[2], 'document', ARGV[3])
elseif version ~= ARGV[2] or stored[2] ~= ARGV[3] then
  return 0
end
redis.call(PUBLISH_COMMAND, (SHARD_CHANNEL_PREFIX or ARGV[4]) .. 'e', 'limits')
return 1
