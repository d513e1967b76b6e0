-- Whether its user may do in scripts what no key is needed for, and a plain user often may not.
--
-- ARGV[1] a channel that nobody listens to   [2] '1' if it is a shard's: sent as publish_channel.lua sends
-- An error if not. That a slot is elsewhere is no matter here, and told to others: so there is no key, as for a PING.
-- O(1)
local PUBLISH_COMMAND = 'PUBLISH'
if ARGV[2] == '1' and redis.REDIS_VERSION_NUM then PUBLISH_COMMAND = 'SPUBLISH' end
for _, command in ipairs({ { 'TIME' }, { PUBLISH_COMMAND, ARGV[1], '' } }) do
  local reply = redis.pcall(unpack(command))
  local text = type(reply) == 'table' and reply.err or ''
  -- As it is said until 7.0, and later.
  for _, refusal in ipairs({ 'The user executing the script', 'ACL failure', 'NOPERM' }) do
    if string.find(text, refusal, 1, true) then return reply end
  end
end
return redis.status_reply('OK')
