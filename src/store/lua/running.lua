-- Whether a job runs, on a lock that its run still has.
--
-- KEYS[1] j   ARGV[1] job id
-- The lock's h carries the tag of that key, and is named after what j says.
-- Returns {} if not: it waits, has ended, or the lease under it is over by this server's clock
--   | {attempt, the first fence of the run}
-- O(1). Reads only.
local v = redis.call('HMGET', KEYS[1], 'state', 'run', 'lock', 'attempts', 'fence')
if v[1] ~= 'running' or not v[2] or not v[3] or not v[5] then return {} end
local till = redis.call('ZSCORE', string.sub(KEYS[1], 1, -#ARGV[1] - 3) .. 'h:' .. v[3], 'h' .. v[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if not till or tonumber(till) <= now then return {} end
return {v[4], v[5]}
