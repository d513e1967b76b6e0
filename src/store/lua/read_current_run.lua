-- Whether a job runs, on a lock that its run still has.
--
-- KEYS[1] j   ARGV[1] job id
-- The lock's h carries the tag of that key, and is named after what j says.
-- Returns {} if not: it waits, has ended, or the lease under it is over by this server's clock
--   | {attempt, the first fence of the run}
-- O(1). Reads only.
local values = redis.call('HMGET', KEYS[1], 'state', 'run', 'lock', 'attempts', 'fence')
if values[1] ~= 'running' or not values[2] or not values[3] or not values[5] then return {} end
local deadline_ms = redis.call('ZSCORE', string.sub(KEYS[1], 1, -#ARGV[1] - 3) .. 'h:' .. values[3], 'h' .. values[2])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if not deadline_ms or tonumber(deadline_ms) <= now_ms then return {} end
return {values[4], values[5]}
