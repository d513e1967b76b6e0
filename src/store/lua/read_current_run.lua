-- Returns the current run of a job, if it still holds its lock.
--
-- Input:
--   KEYS[1]  job record (HASH)
--   ARGV[1]  job id
-- The job record names the lock, so the key of its holders cannot be declared. It carries the hash
-- tag of KEYS[1].
-- Output:
--   {attempt, fence}  the run, with its first fence
--   {}                the job waits, has ended, or its lease has ended by this server's clock
-- Complexity: O(1).
-- It only reads.
local values = redis.call('HMGET', KEYS[1], 'state', 'run', 'lock', 'attempts', 'fence')
if values[1] ~= 'running' or not values[2] or not values[3] or not values[5] then return {} end
local deadline_ms = redis.call('ZSCORE',
  string.sub(KEYS[1], 1, -#ARGV[1] - 3) .. 'h:' .. values[3], 'h' .. values[2])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if not deadline_ms or tonumber(deadline_ms) <= now_ms then return {} end
return {values[4], values[5]}
