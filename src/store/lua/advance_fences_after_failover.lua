-- Raises the fences of shards if another server gave the last ones. A promoted replica may lack the
-- last grants, and its clock may be behind.
--
-- Input:
--   KEYS[1]  hash with the field `run`, the run ID of the server that gave the last fences: `meta`,
--            or in a cluster f of the shard
--   KEYS[2]  and the following: f of each shard (HASH); in a cluster, then the slot guard key
--   ARGV[1]  run ID of this server
-- Output: 1 raised; 0 the server is the same one, or nothing was granted yet.
-- Complexity: O(shards).
-- Idempotent: the run ID and the fences are written in one step, so only the first connection
-- raises them. If its caller is gone, some fences stay unused.
-- f gone, or without a fence: its grants start as far ahead of the clock (wait_queue.lua).
local server_id_key, last_run_id = KEYS[1], redis.call('HGET', KEYS[1], 'run')
if last_run_id == ARGV[1] or redis.call('EXISTS', server_id_key) == 0 then return 0 end
-- As in `next_fence` of wait_queue.lua.
local SPARE_FENCES, FENCE_LEAD_US = 32, 600000000
-- Grants of a shard that a replica may lack. They matter only while the last fence is ahead of the
-- clock, as after an earlier failover. They raise a fence by nearly a million, which the clock
-- advances in a second. Two failovers are further apart, so their raises do not add up.
local MAX_LOST_GRANTS = 30000
local advance = SPARE_FENCES + 1
-- `meta` without `run` is new, as after a loss of all data: no grant is missing. In a cluster this
-- does not follow, since f is older than its first `run`.
if last_run_id or server_id_key == KEYS[2] then advance = advance * MAX_LOST_GRANTS end
local time = redis.call('TIME')
local min_fence = tonumber(time[1]) * 1000000 + tonumber(time[2]) + FENCE_LEAD_US
-- Works at `maxmemory` too: see renew.lua.
redis.call('HDEL', server_id_key, 'never')
for i = 2, #KEYS do
  local last_fence = redis.call('HGET', KEYS[i], 'fence')
  if last_fence then
    redis.call(
      'HSET', KEYS[i], 'fence', string.format('%.0f', math.max(last_fence + advance, min_fence))
    )
  end
end
redis.call('HSET', server_id_key, 'run', ARGV[1])
return 1
