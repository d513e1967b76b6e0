-- Prelude of claim_lock_and_job.lua and settle_job_and_claim_next.lua: removes ended jobs from
-- their queue, and announces changed jobs. Included by claim_settle_batch.lua and the store check
-- (src/store/fsck), after pending_job_bookkeeping.lua.

-- Jobs with a state that has changed in this call. One message at its end announces them.
local CHANGED_JOBS = {}
local function mark_changed(id) CHANGED_JOBS[#CHANGED_JOBS + 1] = id end
local function publish_changed_jobs()
  if #CHANGED_JOBS > 0 then
    redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', table.concat(CHANGED_JOBS, ' '))
  end
end

-- Removes an ended job from its wait queue for good. `outcome` is 'done' or 'dead', for which the
-- job is indexed for `retention_ms`, or 'expired', which is only counted.
--   bytes       pending bytes of the job
--   kept_bytes  bytes of it that are retained; by default `bytes`
-- Replaces `end_waiting_job` with fewer commands. The caller updates the job's own keys, and the
-- due time of the lock if jobs are left. Returns the first job as `leave_queue` does.
local function dequeue_ended_job(id, bytes, outcome, retention_ms, owner, kept_bytes)
  local values =
    redis.call('HMGET', SHARD_META, 'jobs', 'bytes', outcome, 'keep', outcome .. '_bytes')
  local job_count, used_bytes, outcome_count =
    tonumber(values[1] or '0'),
    tonumber(values[2] or '0'),
    tonumber(values[3] or '0') + 1
  job_count, used_bytes = math.max(job_count - 1, 0), math.max(used_bytes - bytes, 0)
  -- As in `uncount_job`.
  if job_count == 0 then used_bytes = 0 end
  if outcome == 'expired' then
    redis.call('HSET', SHARD_META, 'jobs', job_count, 'bytes', used_bytes, outcome, outcome_count)
  else
    local total_bytes = add_to_index(
      outcome,
      id,
      retention_ms,
      outcome_count,
      kept_bytes or bytes,
      owner or '',
      values[5] or nil,
      values[4] or nil
    )
    redis.call('HSET', SHARD_META, 'jobs', job_count, 'bytes', used_bytes,
      outcome, outcome_count, outcome .. '_bytes', total_bytes)
  end
  uncount_for_owner(owner, id)
  mark_changed(id)
  redis.call('ZREM', JOBS, id)
  return leave_queue(id, bytes)
end
