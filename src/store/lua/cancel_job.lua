-- Cancels a job that waits, in its line or late, as it was seen. One that runs, or has ended, is left as it is; and one
-- that has run since: a copy of this call may come when its caller was told long ago that the job runs.
--
-- KEYS[1] j   ARGV[1] job id   ARGV[2] retention, ms   ARGV[3] when the last run began that was seen, us, or 0
-- Everything else that it names carries the tag of that key, and is named after the job and its lock.
-- Returns the state the job is in afterwards, or '' for an unknown one; 'queued': it has run since
-- O(log n). Cancelling twice is the same as once. A run whose worker died counts as running until a
-- worker's visit has looked at it. Where the index it stood in has vanished, this is how a job still ends.
local id = ARGV[1]
local values = redis.call('HMGET', KEYS[1], 'state', 'lock', 'bytes', 'began')
if not values[1] or not values[2] then return '' end
if values[1] ~= 'queued' or (values[4] or '0') ~= ARGV[3] then return values[1] end
select_lock(string.sub(KEYS[1], 1, -#id - 3), values[2])
end_waiting_job(id, tonumber(values[3] or '0'), 'cancelled', '', tonumber(ARGV[2]))
return 'cancelled'
