-- How a run's end is written down, for claim_job.lua and settle_job.lua. Stands behind job_common.lua.

-- Jobs whose state changed in this call: told in one message, at its end.
local CHANGED_JOBS = {}
local function mark_changed(id) CHANGED_JOBS[#CHANGED_JOBS + 1] = id end
local function publish_changed_jobs()
  if #CHANGED_JOBS > 0 then redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', table.concat(CHANGED_JOBS, ' ')) end
end

-- Takes a job that has ended out of its line for good: 'done' and 'dead' are kept for ms, 'expired' is counted.
-- `kept`: the bytes that are kept of it.
-- Does what end_job does, in fewer commands, and leaves `due` to those who see what comes next. Its own keys are
-- the caller's. Returns as left_line.
local function finish_job(id, bytes, outcome, retention_ms, owner, kept_bytes)
  local values = redis.call('HMGET', SHARD_META, 'jobs', 'bytes', outcome, 'keep', outcome .. '_bytes')
  local job_count, used_bytes, outcome_count = tonumber(values[1] or '0'), tonumber(values[2] or '0'), tonumber(values[3] or '0') + 1
  job_count, used_bytes = math.max(job_count - 1, 0), math.max(used_bytes - bytes, 0)
  -- As in uncount.
  if job_count == 0 then used_bytes = 0 end
  if outcome == 'expired' then
    redis.call('HSET', SHARD_META, 'jobs', job_count, 'bytes', used_bytes, outcome, outcome_count)
  else
    local total_bytes = add_to_index(outcome, id, retention_ms, outcome_count, kept_bytes or bytes, owner or '', values[5] or nil, values[4] or nil)
    redis.call('HSET', SHARD_META, 'jobs', job_count, 'bytes', used_bytes, outcome, outcome_count, outcome .. '_bytes', total_bytes)
  end
  uncount_for_owner(owner, id)
  mark_changed(id)
  redis.call('ZREM', JOBS, id)
  return leave_queue(id, bytes)
end
