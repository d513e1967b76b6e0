-- Checks that the user may run, in a script, the commands without a key. A restricted user often
-- lacks this permission.
--
-- Input:
--   ARGV[1]  channel without subscribers
--   ARGV[2]  1 for a channel of a shard, to which choose_publish_command.lua would send
-- Output: OK, or the error of the missing permission. Other errors are ignored.
-- Complexity: O(1).
-- Declares no key, like PING: a slot that has moved is not of interest here; other calls report it.
local PUBLISH_COMMAND = 'PUBLISH'
if ARGV[2] == '1' and redis.REDIS_VERSION_NUM then PUBLISH_COMMAND = 'SPUBLISH' end
for _, command in ipairs({ { 'TIME' }, { PUBLISH_COMMAND, ARGV[1], '' } }) do
  local reply = redis.pcall(unpack(command))
  local text = type(reply) == 'table' and reply.err or ''
  -- Texts of Redis before 7.0, and later.
  for _, refusal in ipairs({ 'The user executing the script', 'ACL failure', 'NOPERM' }) do
    if string.find(text, refusal, 1, true) then return reply end
  end
end
return redis.status_reply('OK')
