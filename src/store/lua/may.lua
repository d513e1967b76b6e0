-- Whether its user may do in scripts what no key is needed for, and a plain user often may not.
--
-- ARGV[1] a channel that nobody listens to   [2] '1' if it is a shard's: sent as channel.lua sends
-- An error if not. That a slot is elsewhere is no matter here, and told to others: so there is no key, as for a PING.
-- O(1)
local PUBLISH = 'PUBLISH'
if ARGV[2] == '1' and redis.REDIS_VERSION_NUM then PUBLISH = 'SPUBLISH' end
for _, command in ipairs({ { 'TIME' }, { PUBLISH, ARGV[1], '' } }) do
  local said = redis.pcall(unpack(command))
  local text = type(said) == 'table' and said.err or ''
  -- As it is said until 7.0, and later.
  for _, refusal in ipairs({ 'The user executing the script', 'ACL failure', 'NOPERM' }) do
    if string.find(text, refusal, 1, true) then return said end
  end
end
return redis.status_reply('OK')
