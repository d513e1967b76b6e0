-- Raises the fences of shards whose server is not the one that gave the last of them: a replica that was promoted may lack
-- the last grants, and its clock may be behind.
--
-- KEYS[1] the hash that keeps as `run` which server gave them: meta, or in a cluster f of the shard
-- KEYS[2..] f of each shard, and in a cluster the key that is never there   ARGV the server's run_id
-- Returns 1 raised | 0 it is the same server, or nothing was granted yet
-- O(shards). Idempotent: the name of the server and the floors are written in one step, so that whichever connection comes
-- first raises them, once, and a second run changes nothing. A caller that has gone leaves numbers out. Where f has
-- vanished, or has no fence, grants begin as high by themselves (wait_queue.lua).
local server_id_key, last_run_id = KEYS[1], redis.call('HGET', KEYS[1], 'run')
if last_run_id == ARGV[1] or redis.call('EXISTS', server_id_key) == 0 then return 0 end
-- As next_fence in wait_queue.lua has them.
local SPARE_FENCES, FENCE_LEAD_US = 32, 600000000
-- Grants of a shard that a replica may lack. They count where the clock can't tell: while the last fence is ahead of it,
-- as after the failover before. A second of fences: two failovers are further apart, so the floors do not add up.
local MAX_LOST_GRANTS = 30000
local advance = SPARE_FENCES + 1
-- Of data that were lost nothing is lacking. In a cluster f is older than its first `run`.
if last_run_id or server_id_key == KEYS[2] then advance = advance * MAX_LOST_GRANTS end
local time = redis.call('TIME')
local min_fence = tonumber(time[1]) * 1000000 + tonumber(time[2]) + FENCE_LEAD_US
-- Also without room: see renew.lua.
redis.call('HDEL', server_id_key, 'never')
for i = 2, #KEYS do
  local last_fence = redis.call('HGET', KEYS[i], 'fence')
  if last_fence then redis.call('HSET', KEYS[i], 'fence', string.format('%.0f', math.max(last_fence + advance, min_fence))) end
end
redis.call('HSET', server_id_key, 'run', ARGV[1])
return 1
