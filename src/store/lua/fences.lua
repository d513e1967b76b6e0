-- Raises the fences of shards whose server is not the one that gave the last of them: a replica that was promoted may lack
-- the last grants, and its clock may be behind.
--
-- KEYS[1] the hash that keeps as `run` which server gave them: meta, or in a cluster f of the shard
-- KEYS[2..] f of each shard, and in a cluster the key that is never there   ARGV the server's run_id
-- Returns 1 raised | 0 it is the same server, or nothing was granted yet
-- O(shards). Idempotent: the name of the server and the floors are written in one step, so that whichever connection comes
-- first raises them, once, and a second run changes nothing. A caller that has gone leaves numbers out. Where f has
-- vanished, or has no fence, grants begin as high by themselves (line.lua).
local keeper, run = KEYS[1], redis.call('HGET', KEYS[1], 'run')
if run == ARGV[1] or redis.call('EXISTS', keeper) == 0 then return 0 end
-- As next_fence in line.lua has them.
local SPARE, AHEAD = 32, 600000000
-- Grants of a shard that a replica may lack. They count where the clock can't tell: while the last fence is ahead of it,
-- as after the failover before. A second of fences: two failovers are further apart, so the floors do not add up.
local LACKS = 30000
local more = SPARE + 1
-- Of data that were lost nothing is lacking. In a cluster f is older than its first `run`.
if run or keeper == KEYS[2] then more = more * LACKS end
local time = redis.call('TIME')
local floor = tonumber(time[1]) * 1000000 + tonumber(time[2]) + AHEAD
-- Also without room: see renew.lua.
redis.call('HDEL', keeper, 'never')
for i = 2, #KEYS do
  local last = redis.call('HGET', KEYS[i], 'fence')
  if last then redis.call('HSET', KEYS[i], 'fence', string.format('%.0f', math.max(last + more, floor))) end
end
redis.call('HSET', keeper, 'run', ARGV[1])
return 1
