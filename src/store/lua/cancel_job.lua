-- Cancels a waiting job, queued or delayed, that has not run since its caller read it.
--
-- Input:
--   KEYS[1]  job record, j (HASH)
--   ARGV[1]  job id
--   ARGV[2]  retention, ms
--   ARGV[3]  start of the last run that the caller has seen, us, or 0
-- The names of all other keys are built from that of the job and from its lock; they share the hash
-- tag.
-- Output: the state of the job after the call, or '' if the job is unknown. 'queued' means that it
-- has run since.
-- Complexity: O(log n).
-- Idempotent. A late copy does not cancel a job that has run since: its caller may have learned
-- that the job runs.
-- A run counts as running after the death of its worker, until a claim finds it.
-- If the job's queue or index (g, late) has vanished, no worker finds the job, but this ends it.
local id = ARGV[1]
local values = redis.call('HMGET', KEYS[1], 'state', 'lock', 'bytes', 'began')
if not values[1] or not values[2] then return '' end
if values[1] ~= 'queued' or (values[4] or '0') ~= ARGV[3] then return values[1] end
select_lock(string.sub(KEYS[1], 1, -#id - 3), values[2])
end_waiting_job(id, tonumber(values[3] or '0'), 'cancelled', '', tonumber(ARGV[2]))
return 'cancelled'
