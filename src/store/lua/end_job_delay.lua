-- Ends the delay or the backoff of a waiting job that has not run since its caller read it. The job
-- keeps its place among the others of its lock.
--
-- Input:
--   KEYS[1]  job record, j (HASH)
--   ARGV[1]  job id
--   ARGV[2]  start of the last run that the caller has seen, us, or 0
-- The names of all other keys are built from that of the job and from its lock; they share the hash
-- tag.
-- Output: the state of the job after the call, or '' if the job is unknown.
-- Complexity: O(log n).
-- Idempotent. A late copy does not end a backoff that began with a later run: its caller asked
-- about the earlier one.
-- What it writes is an index that each poll sweeps, or an offer, which expires. If the job's queue
-- or index (g, late) has vanished, it changes nothing.
local id, job_key = ARGV[1], KEYS[1]
local values = redis.call('HMGET', job_key, 'state', 'lock', 'began')
if not values[1] or not values[2] then return '' end
if values[1] ~= 'queued' or (values[3] or '0') ~= ARGV[2] then return values[1] end
select_lock(string.sub(job_key, 1, -#id - 3), values[2])
local due_ms = redis.call('ZSCORE', shard_key('late'), id)
if due_ms then
  -- The next poll puts it back into its queue.
  if tonumber(due_ms) > NOW_MS then schedule_in_index(shard_key('late'), id, NOW_MS) end
  return 'queued'
end
local backoffs = redis.call('HGET', QUEUE_META, 'back')
if not backoff_end(backoffs or nil, id) or not redis.call('ZSCORE', JOBS, id) then
  return 'queued'
end
remove_backoff(backoffs, id)
-- The lock may be due at the end of the backoff only. A holder that crashes makes no offer.
local latest_ms = expire_holders()
if latest_ms then
  schedule_no_later(latest_ms)
else
  offer_next(true)
end
return 'queued'
