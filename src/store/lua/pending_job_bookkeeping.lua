-- Prelude of the scripts about jobs: delayed and queued jobs, counts, webhooks, and the ends of
-- pending jobs.
--
-- Included by enqueue_jobs.lua, claim_settle_batch.lua, cancel_job.lua, purge_job_to_tombstone.lua,
-- redrive_job.lua, end_job_delay.lua, idempotent_run_record.lua, poll_due_locks_and_jobs.lua and
-- the store check (src/store/fsck), after choose_publish_command.lua, wait_queue.lua and
-- ended_job_bookkeeping.lua. Every function is about the lock that `select_lock` or
-- `select_lock_by_key` has selected.
--
-- Keys of a shard, besides those of wait_queue.lua and ended_job_bookkeeping.lua. They share the
-- hash tag of the declared keys, so a script may build their names (`shard_key`): often only the
-- script finds out which job it is about.
--   j:<job>    HASH    fields of the job, below
--   b:<job>    STRING  its request
--   r:<job>    STRING  its response
--   t:<job>    STRING  request of its webhook
--   late       ZSET    delayed job, outside of any wait queue -> due time, ms
--   lates      HASH    'n' .. lock, 'b' .. lock: number and bytes of its delayed jobs
--   exp        ZSET    job with a deadline -> deadline, ms
--   o:<owner>  HASH    pending job (it waits or runs) of an owner -> bytes, and '' -> their sum
-- An evicted or purged job leaves a tombstone for the rest of its retention
-- (ended_job_bookkeeping.lua).
--
-- Fields of j (a direct run has no seq and no bytes):
--   state, lock
--   seq        sequence in g
--   bytes      size of the requests of the job and its webhook
--   at         time of acceptance, us
--   max        attempts allowed
-- Fields of j that may be missing:
--   attempts   attempts made
--   again      1: may run again after a crash
--   skip       1: later jobs may overtake it while it waits for a retry
--   exp        deadline, ms
--   owner
--   run        token of the last run
--   fence      first fence of that run
--   began      start of that run, us
--   runs       history of its runs
--   crashes    number of crashed runs
--   busy       number of runs given back because a nested lock was busy
--   reason     reason of the end or of the last retry
--   ended      time of the end, us
--   by         job that superseded it
--   record     '<record> <ms>' pairs: its idempotency record, without the lock's name, and the
--              earliest end of it; then those of merged requests. Of a direct run: the name only.
--   call       webhook job: '<job> <max attempts> <lock>'; '-': records, but no webhook
--   end        of a webhook job, the end that it reports, which may outlive the reported job:
--              '<state> <attempts> <ended, us> <status of the response, or 0> <reason>'
--   direct     1: direct run (idempotent_run_record.lua)
--   til        of a direct run, the deadline of its next renewal, ms
--
-- Fields of f:
--   jobs, bytes                         number and bytes of the pending jobs
--   done, dead, expired, cancelled      jobs that ever ended so
--   done_out, dead_out                  purged or redriven jobs
--   done_bytes, dead_bytes              bytes retained in the index
--   done_owned, dead_owned              bytes of them that belong to jobs with an owner
--   keep                                limit of the bytes of each index
-- Jobs that are neither in their index nor in done_out or dead_out expired or were evicted.

-- Retention of the status of a superseded or expired job, ms.
local STATUS_RETENTION_MS = 86400000

-- TTL of an owner's counts (o:<owner>) after its last counted job, ms. The owner of a vanished job
-- is unknown, and the job must not count for ever.
local OWNER_COUNT_TTL_MS = 2592000000

-- Minimum TTL of the idempotency record of a pending job, ms. The record of a vanished job must
-- expire too.
local PENDING_RECORD_TTL_MS = 2592000000

-- Adds a job to `late` or `exp`, and wakes the watching node if it must poll earlier for it.
local function schedule_in_index(index, id, due_ms)
  local earliest = redis.call('ZRANGE', index, '0', '0', 'WITHSCORES')
  redis.call('ZADD', index, integer(due_ms), id)
  if #earliest > 0 and tonumber(earliest[2]) <= due_ms then return end
  local node = watching_node()
  if node then redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node, 'd ' .. LOCK_NAME) end
end

-- Adds a job to the delayed jobs until `due_ms`. The caller updates g and l.
local function add_delayed_job(id, due_ms, bytes)
  schedule_in_index(shard_key('late'), id, due_ms)
  redis.call('HINCRBY', shard_key('lates'), 'n' .. LOCK_NAME, '1')
  redis.call('HINCRBY', shard_key('lates'), 'b' .. LOCK_NAME, bytes)
end

-- Removes a job from the delayed jobs. Returns false if it was not delayed.
local function remove_delayed_job(id, bytes)
  local delayed, delayed_counts = shard_key('late'), shard_key('lates')
  if redis.call('ZREM', delayed, id) == 0 then return false end
  if redis.call('HINCRBY', delayed_counts, 'n' .. LOCK_NAME, '-1') <= 0 then
    redis.call('HDEL', delayed_counts, 'n' .. LOCK_NAME, 'b' .. LOCK_NAME)
  else
    redis.call('HINCRBY', delayed_counts, 'b' .. LOCK_NAME, 0 - bytes)
  end
  -- Counts that are left now belong to jobs with vanished keys.
  if redis.call('EXISTS', delayed) == 0 then redis.call('DEL', delayed_counts) end
  return true
end

-- Adds a job to the wait queue at its sequence. A free lock is offered to the queue head.
local function join_queue(id, sequence, bytes)
  redis.call('ZADD', JOBS, integer(sequence), id)
  -- With its first job, l loses the TTL of its queue entries.
  if redis.call('HINCRBY', QUEUE_META, 'bytes', bytes) == bytes then
    redis.call('PERSIST', QUEUE_META)
  end
  local latest_ms, _, only_holder = expire_holders()
  if latest_ms then
    notify_holders('g', sequence, only_holder)
    if not redis.call('ZSCORE', DUE, LOCK_NAME) then schedule(latest_ms) end
  else
    offer_next(true)
  end
end

-- Counts a job for its owner, if it has one. The id is the field, so a repeated call counts once.
local function count_for_owner(owner, id, bytes)
  if not owner or owner == '' then return end
  local owner_key = shard_key('o:' .. owner)
  if redis.call('HSETNX', owner_key, id, bytes) == 1 then
    redis.call('HINCRBY', owner_key, '', bytes)
  end
  redis.call('PEXPIRE', owner_key, OWNER_COUNT_TTL_MS)
end

-- Removes a job from its owner's counts.
local function uncount_for_owner(owner, id)
  if not owner or owner == '' then return end
  local owner_key = shard_key('o:' .. owner)
  local bytes = redis.call('HGET', owner_key, id)
  if not bytes then return end
  redis.call('HDEL', owner_key, id)
  if redis.call('HINCRBY', owner_key, '', 0 - bytes) <= 0 then redis.call('DEL', owner_key) end
end

-- Removes a pending job from the shard's counts.
local function uncount_job(bytes)
  -- The size of a vanished job is unknown, so its bytes may still be counted. Without jobs both
  -- counts are 0.
  if redis.call('HINCRBY', SHARD_META, 'jobs', '-1') <= 0 then
    return redis.call('HSET', SHARD_META, 'jobs', '0', 'bytes', '0')
  end
  -- Not `-bytes`: for 0 that is sent as '-0', which Redis rejects as a number.
  if redis.call('HINCRBY', SHARD_META, 'bytes', 0 - bytes) < 0 then
    redis.call('HSET', SHARD_META, 'bytes', '0')
  end
end

-- Returns the first job of the queue and its sequence; `has_more` is set if another job follows.
local function first_job()
  local first = redis.call('ZRANGE', JOBS, '0', '1', 'WITHSCORES')
  first.has_more, first[3], first[4] = first[3], nil, nil
  return first
end

-- Sets the TTL of an ended job's idempotency records: the retention of the job, or the rest of the
-- record's own time if that is longer. A retry gets the end of the job as long as the job is kept.
local function extend_records(id)
  local retention_ms = redis.call('PTTL', shard_key('j:' .. id))
  local values = redis.call('HMGET', shard_key('j:' .. id), 'record', 'owner')
  for record_name, deadline_ms in string.gmatch(values[1] or '', '(%S+) (%d+)') do
    local record_key = shard_key('i:' .. record_name .. ':' .. LOCK_NAME)
    if retention_ms > 0 and string.match(redis.call('GET', record_key) or '', '^%S+') == id then
      extend_record(
        record_key,
        math.max(tonumber(deadline_ms) - NOW_MS, retention_ms),
        values[2] or ''
      )
    end
  end
end

-- Enqueues the webhook job of a job that has ended, with the request that was stored for it. This
-- is in the same step as the end, so a crash cannot separate them.
--   webhook  field `call` of the job
--   keep_ms  time for which the stored request is kept as well, in case the job is redriven; or nil
--   status   status of the job's response, if it has one
local function enqueue_webhook(id, webhook, keep_ms, status)
  if webhook then extend_records(id) end
  local webhook_id, max_attempts, webhook_lock =
    string.match(webhook or '', '^(%x+) (%d+) (%S+)$')
  local stored_request = shard_key('t:' .. id)
  local bytes = webhook_id and redis.call('STRLEN', stored_request) or 0
  if bytes == 0 then return end
  local webhook_job, request = shard_key('j:' .. webhook_id), shard_key('b:' .. webhook_id)
  local state = redis.call('HGET', webhook_job, 'state')
  local values =
    redis.call('HMGET', shard_key('j:' .. id), 'state', 'attempts', 'ended', 'reason', 'owner')
  local end_summary = (values[1] or 'dead') .. ' ' .. (values[2] or '0') .. ' '
    .. (values[3] or '0') .. ' ' .. (status or '0') .. ' ' .. (values[4] or '')
  -- A redriven job ends again. If its webhook job is still queued, that reports the last end, with
  -- all its attempts. If it is running, its settlement finds the new end (`webhook_outcome`) and
  -- returns it to the queue.
  local is_pending = state == 'queued' or state == 'running'
  if is_pending then redis.call('HSET', webhook_job, 'end', end_summary, 'attempts', '0') end
  if not is_pending and keep_ms then
    redis.call('COPY', stored_request, request, 'REPLACE')
  elseif not is_pending then
    redis.call('RENAME', stored_request, request)
  end
  if keep_ms then
    redis.call('PEXPIRE', stored_request, keep_ms)
  else
    redis.call('DEL', stored_request)
  end
  if is_pending then return end
  redis.call('PERSIST', request)
  -- The index entry of an earlier webhook job may outlive its key. Evicting that entry must not
  -- delete the keys of the new job.
  remove_from_index('done', webhook_id)
  remove_from_index('dead', webhook_id)
  redis.call('DEL', webhook_job, shard_key('r:' .. webhook_id))
  local sequence, current_lock = next_sequence(), LOCK_NAME
  redis.call('HSET', webhook_job, 'state', 'queued', 'lock', webhook_lock,
    'seq', integer(sequence), 'bytes', bytes, 'at', integer(NOW_US),
    'max', max_attempts, 'again', 1, 'end', end_summary)
  -- The webhook job counts for the owner of the request, so that an owner cannot fill the queue
  -- with webhooks.
  local owner = values[5] or ''
  if owner ~= '' then redis.call('HSET', webhook_job, 'owner', owner) end
  count_for_owner(owner, webhook_id, bytes)
  redis.call('HINCRBY', SHARD_META, 'jobs', '1')
  redis.call('HINCRBY', SHARD_META, 'bytes', bytes)
  select_lock(SHARD_PREFIX, webhook_lock)
  join_queue(webhook_id, sequence, bytes)
  select_lock(SHARD_PREFIX, current_lock)
end

-- Maximum number of backoffs stored for a lock, the latest ones. Usually there is one, that of the
-- first job.
local MAX_BACKOFFS = 16

-- Returns the backoffs of other jobs in `backoffs` (field `back` of l) that have not ended.
local function other_backoffs(backoffs, id)
  local remaining = {}
  for deadline_ms, delayed_id in string.gmatch(backoffs or '', '(%d+) (%x+)') do
    if delayed_id ~= id and tonumber(deadline_ms) > NOW_MS then
      remaining[#remaining + 1] = deadline_ms .. ' ' .. delayed_id
    end
  end
  return remaining
end

-- Removes a job's backoff. Returns the backoffs that are left, or nil.
local function remove_backoff(backoffs, id)
  if not backoffs or not string.find(backoffs, ' ' .. id, 1, true) then return backoffs end
  local remaining = table.concat(other_backoffs(backoffs, id), ' ')
  if remaining == '' then
    redis.call('HDEL', QUEUE_META, 'back')
    return nil
  end
  redis.call('HSET', QUEUE_META, 'back', remaining)
  return remaining
end

-- Removes the fields of l about jobs, after the last job has left. The fields of queue entries
-- stay, and expire with q. Returns true if there are no queue entries.
local function clear_queue_meta()
  local waiters_ttl_ms = redis.call('PTTL', WAITERS)
  if waiters_ttl_ms > 0 then
    redis.call('HDEL', QUEUE_META, 'park', 'back', 'bytes')
    redis.call('PEXPIRE', QUEUE_META, waiters_ttl_ms)
  else
    redis.call('UNLINK', QUEUE_META)
  end
  return waiters_ttl_ms == -2
end

-- Removes the job's data from l, after the job has left g. Returns the first job as `first_job`
-- does, with the backoffs as third item; or, without a job, `is_queue_empty`, which is true if
-- there are no queue entries either.
local function leave_queue(id, bytes)
  local first = first_job()
  if #first > 0 then
    local values = redis.call('HMGET', QUEUE_META, 'bytes', 'back')
    redis.call('HSET', QUEUE_META, 'bytes', math.max(tonumber(values[1] or '0') - bytes, 0))
    first[3] = remove_backoff(values[2] or nil, id)
    return first
  end
  redis.call('ZREM', DUE, LOCK_NAME)
  first.is_queue_empty = clear_queue_meta()
  return first
end

-- Removes a job from the wait queue, or from the delayed jobs, for good. Its key j stays for status
-- requests.
local function remove_job(id, bytes)
  redis.call('ZREM', shard_key('exp'), id)
  uncount_job(bytes)
  uncount_for_owner(redis.call('HGET', shard_key('j:' .. id), 'owner'), id)
  local was_queued = redis.call('ZREM', JOBS, id) == 1
  if not was_queued and remove_delayed_job(id, bytes) then return end
  local first = leave_queue(id, was_queued and bytes or 0)
  -- The due time of the lock may have been the end of this job's backoff.
  if #first > 0 then redis.call('ZADD', DUE, integer(NOW_MS), LOCK_NAME) end
end

-- Ends a direct run as dead, because its progress is unknown. Its record leads to this end for at
-- least `retention_ms`.
local function end_direct_run(record_key, id, reason, retention_ms)
  local job_key = shard_key('j:' .. id)
  -- At `maxmemory` Redis refuses a script if its first write may allocate (see renew.lua). This
  -- one does not.
  redis.call('HDEL', job_key, '', 'til')
  redis.call('HSET', job_key, 'state', 'dead', 'reason', reason, 'ended', integer(NOW_US))
  redis.call('PEXPIRE', job_key, integer(retention_ms))
  local owner = redis.call('HGET', job_key, 'owner') or ''
  local owns_record = string.match(redis.call('GET', record_key) or '', '^%S+') == id
  if owns_record and redis.call('PTTL', record_key) < retention_ms then
    extend_record(record_key, retention_ms, owner)
  end
  add_to_index_and_count(
    'dead',
    id,
    retention_ms,
    0,
    redis.call('HINCRBY', SHARD_META, 'dead', 1),
    owner
  )
  redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
end

-- Like `check_direct_run`, but ends a crashed run that must not be repeated. Returns true if the
-- record is free.
local function release_crashed_record(record_key, id)
  local outcome = check_direct_run(record_key, id)
  if outcome == 'crashed' then
    end_direct_run(
      record_key,
      id,
      'crashed, may have run',
      math.max(redis.call('PTTL', shard_key('j:' .. id)), 1)
    )
  end
  return outcome == 'rerun'
end

-- Ends a job that waits, or whose run has just ended, as 'cancelled' or 'expired', with a reason
-- unless that is ''. The job is kept
-- for `retention_ms` without its request. It is counted, but in no index.
local function end_waiting_job(id, bytes, state, reason, retention_ms, superseded_by)
  local job_key = shard_key('j:' .. id)
  -- The first write allocates nothing, as in `end_direct_run`.
  redis.call('DEL', shard_key('b:' .. id))
  redis.call('HSET', job_key, 'state', state, 'ended', integer(NOW_US))
  if reason ~= '' then redis.call('HSET', job_key, 'reason', reason) end
  if superseded_by then redis.call('HSET', job_key, 'by', superseded_by) end
  redis.call('PEXPIRE', job_key, integer(retention_ms))
  redis.call('HINCRBY', SHARD_META, state, '1')
  redis.call('ZREM', HOLDERS, 'j' .. id)
  remove_job(id, bytes)
  offer_next()
  enqueue_webhook(id, redis.call('HGET', job_key, 'call'))
  redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
end

-- Ends a waiting job that is past its deadline.
local function expire_job(id, bytes)
  end_waiting_job(id, bytes, 'expired', 'deadline', STATUS_RETENTION_MS)
end
