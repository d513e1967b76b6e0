-- What the scripts about deferred requests share. Stands behind wait_queue.lua and ended_jobs.lua, before each of them.
--
-- Keys beside those of the line. They have the shard's tag, so a script may make their names itself (`own`):
-- which job it will be about often turns out in the script alone.
-- j:<id>        HASH    facts of a job: state; lock; seq, its place in g; bytes; at, us when it was accepted; max attempts;
--                       if not 0: attempts, again (1 = may run again after a crash), skip (1 = others may pass it while
--                       it waits for its retry), exp (its deadline, ms); if there are: owner, run, reason, ended (us), by,
--                       record (the name of its idempotency record, without the lock's, and until when that is there
--                       at least, ms; behind it those of requests that were merged into it), call (who is told of its
--                       end: id, most attempts and lock of a job that there is from then on; '-' where there is a
--                       record and nobody is); of such a job: end, what
--                       it tells of that one, which may be forgotten first: state, attempts, ended (us), status of the
--                       response or 0, reason
-- b:<id>        STRING  its request      r:<id>  STRING  its response      t:<id>  STRING  the request of its call
--                       of one that was evicted or purged a tombstone is left for the rest of its time (ended_jobs.lua)
-- late          ZSET    of the shard: job that waits outside of any line -> when it comes back, ms
-- lates         HASH    of the shard: 'n' .. lock, 'b' .. lock: number and bytes of its late jobs
-- o:<owner>     HASH    jobs of an owner in this shard that wait or run -> their bytes, and '' -> the sum
-- exp           ZSET    of the shard: job that has a deadline -> that, ms
-- done, dead    ZSET    of the shard: ended job -> when it is forgotten, us; with their books in ended_jobs.lua
-- f has, besides the number and bytes of those that wait or run: keep, the most bytes of each index;
-- done_bytes and dead_bytes, the sums of those, and done_owned and dead_owned, what jobs with an owner have of it; how many were ever filed as done and dead, and
-- expired and cancelled; and done_out and dead_out: what was purged, or put back. What is in the indexes is what
-- is kept of them, the rest was taken by TTLs, or by the cap.
-- Of a request that runs at once (direct_run.lua): direct, and til, ms, by when its process renews it.
-- Besides, j has: began (us, the last run), crashes, busy and runs (its history).

-- How long it is known of a job that it was superseded, or that its time was over, ms.
local STATUS_RETENTION_MS = 86400000

-- How long it is known what an owner has, after the last that was accepted of him, ms: nobody can tell whose job it
-- was whose keys have vanished, and it must not count for ever.
local OWNER_COUNT_TTL_MS = 2592000000

-- How long an idempotency record is there while its job waits or runs, ms: of one that has vanished it must not be
-- there for ever.
local PENDING_RECORD_TTL_MS = 2592000000

-- Sets when the watcher has to see to a job that is in one of the shard's indexes, and tells it if it must
-- wake sooner for that.
local function schedule_in_index(index, id, due_ms)
  local earliest = redis.call('ZRANGE', index, '0', '0', 'WITHSCORES')
  redis.call('ZADD', index, integer(due_ms), id)
  if #earliest > 0 and tonumber(earliest[2]) <= due_ms then return end
  local node = watching_node()
  if node then redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node, 'd ' .. LOCK_NAME) end
end

-- Puts a job outside of its line until a time. What is kept of it in g and l is the caller's.
local function add_delayed_job(id, due_ms, bytes)
  schedule_in_index(shard_key('late'), id, due_ms)
  redis.call('HINCRBY', shard_key('lates'), 'n' .. LOCK_NAME, '1')
  redis.call('HINCRBY', shard_key('lates'), 'b' .. LOCK_NAME, bytes)
end

-- Takes a job out of those that wait outside; false if it was none of them.
local function remove_delayed_job(id, bytes)
  local delayed, delayed_counts = shard_key('late'), shard_key('lates')
  if redis.call('ZREM', delayed, id) == 0 then return false end
  if redis.call('HINCRBY', delayed_counts, 'n' .. LOCK_NAME, '-1') <= 0 then
    redis.call('HDEL', delayed_counts, 'n' .. LOCK_NAME, 'b' .. LOCK_NAME)
  else
    redis.call('HINCRBY', delayed_counts, 'b' .. LOCK_NAME, 0 - bytes)
  end
  -- Nothing is counted for jobs whose keys have vanished.
  if redis.call('EXISTS', delayed) == 0 then redis.call('DEL', delayed_counts) end
  return true
end

-- Puts a job into the line at its sequence. If the lock is free, it is offered to whoever is first now.
local function join_queue(id, sequence, bytes)
  redis.call('ZADD', JOBS, integer(sequence), id)
  -- The first of a line, whose l may have an end.
  if redis.call('HINCRBY', QUEUE_META, 'bytes', bytes) == bytes then redis.call('PERSIST', QUEUE_META) end
  local latest_ms, _, only_holder = expire_holders()
  if latest_ms then
    notify_holders('g', sequence, only_holder)
    if not redis.call('ZSCORE', DUE, LOCK_NAME) then schedule(latest_ms) end
  else
    offer_next(true)
  end
end

-- Counts a job for its owner, if it has one. By its id, so that what is done twice counts once.
local function count_for_owner(owner, id, bytes)
  if not owner or owner == '' then return end
  local owner_key = shard_key('o:' .. owner)
  if redis.call('HSETNX', owner_key, id, bytes) == 1 then redis.call('HINCRBY', owner_key, '', bytes) end
  redis.call('PEXPIRE', owner_key, OWNER_COUNT_TTL_MS)
end

-- Takes a job from what its owner has.
local function uncount_for_owner(owner, id)
  if not owner or owner == '' then return end
  local owner_key = shard_key('o:' .. owner)
  local bytes = redis.call('HGET', owner_key, id)
  if not bytes then return end
  redis.call('HDEL', owner_key, id)
  if redis.call('HINCRBY', owner_key, '', 0 - bytes) <= 0 then redis.call('DEL', owner_key) end
end

-- One job less of the shard.
local function uncount_job(bytes)
  -- What a job that vanished was counted as is not known: nothing left is nothing counted.
  if redis.call('HINCRBY', SHARD_META, 'jobs', '-1') <= 0 then return redis.call('HSET', SHARD_META, 'jobs', '0', 'bytes', '0') end
  -- Not -bytes: of 0 that is '-0' on the wire, which the server does not take for a number.
  if redis.call('HINCRBY', SHARD_META, 'bytes', 0 - bytes) < 0 then redis.call('HSET', SHARD_META, 'bytes', '0') end
end

-- The first job of a line and its sequence; `more` if another one stands behind it.
local function first_jobs()
  local first = redis.call('ZRANGE', JOBS, '0', '1', 'WITHSCORES')
  first.has_more, first[3], first[4] = first[3], nil, nil
  return first
end

-- A job with a record has ended, and is kept for a time: a retry is told of its end for as long.
local function extend_records(id)
  local retention_ms = redis.call('PTTL', shard_key('j:' .. id))
  local values = redis.call('HMGET', shard_key('j:' .. id), 'record', 'owner')
  for record_name, deadline_ms in string.gmatch(values[1] or '', '(%S+) (%d+)') do
    local record_key = shard_key('i:' .. record_name .. ':' .. LOCK_NAME)
    if retention_ms > 0 and string.match(redis.call('GET', record_key) or '', '^%S+') == id then
      extend_record(record_key, math.max(tonumber(deadline_ms) - NOW_MS, retention_ms), values[2] or '')
    end
  end
end

-- A job has ended: the call that tells of it, which was stored along with it, becomes a job in its own line, in this
-- step, so nobody can die in between. `keep`: ms that it is kept besides, should the job be put back. `status`: of its
-- response, if it has one.
local function enqueue_webhook(id, webhook, keep_ms, status)
  if webhook then extend_records(id) end
  local webhook_id, max_attempts, webhook_lock = string.match(webhook or '', '^(%x+) (%d+) (%S+)$')
  local stored_request = shard_key('t:' .. id)
  local bytes = webhook_id and redis.call('STRLEN', stored_request) or 0
  if bytes == 0 then return end
  local webhook_job, request = shard_key('j:' .. webhook_id), shard_key('b:' .. webhook_id)
  local state = redis.call('HGET', webhook_job, 'state')
  local values = redis.call('HMGET', shard_key('j:' .. id), 'state', 'attempts', 'ended', 'reason', 'owner')
  local end_summary = (values[1] or 'dead') .. ' ' .. (values[2] or '0') .. ' ' .. (values[3] or '0') .. ' ' .. (status or '0') .. ' '
    .. (values[4] or '')
  -- One that was put back ends again. A call that has not been made yet tells of the last end, with all attempts to
  -- come; so does one that is being made, which finds that out as it is settled.
  local is_pending = state == 'queued' or state == 'running'
  if is_pending then redis.call('HSET', webhook_job, 'end', end_summary, 'attempts', '0') end
  if not is_pending and keep_ms then
    redis.call('COPY', stored_request, request, 'REPLACE')
  elseif not is_pending then
    redis.call('RENAME', stored_request, request)
  end
  if keep_ms then redis.call('PEXPIRE', stored_request, keep_ms) else redis.call('DEL', stored_request) end
  if is_pending then return end
  redis.call('PERSIST', request)
  -- Also of facts that a TTL has taken: what makes room there forgets whom it finds, with the request.
  remove_from_index('done', webhook_id)
  remove_from_index('dead', webhook_id)
  redis.call('DEL', webhook_job, shard_key('r:' .. webhook_id))
  local sequence, current_lock = next_sequence(), LOCK_NAME
  redis.call('HSET', webhook_job, 'state', 'queued', 'lock', webhook_lock, 'seq', integer(sequence), 'bytes', bytes, 'at', integer(NOW_US),
    'max', max_attempts, 'again', 1, 'end', end_summary)
  -- It counts as the request did: who says whom to call is not to fill the queue for the others.
  local owner = values[5] or ''
  if owner ~= '' then redis.call('HSET', webhook_job, 'owner', owner) end
  count_for_owner(owner, webhook_id, bytes)
  redis.call('HINCRBY', SHARD_META, 'jobs', '1')
  redis.call('HINCRBY', SHARD_META, 'bytes', bytes)
  select_lock(SHARD_PREFIX, webhook_lock)
  join_queue(webhook_id, sequence, bytes)
  select_lock(SHARD_PREFIX, current_lock)
end

-- Most backoffs that are known of a line: of those that have failed last. Mostly there is one, of the first.
local MAX_BACKOFFS = 16

-- What l says of the backoffs of others than this job, as far as they are not over.
local function other_backoffs(backoffs, id)
  local others = {}
  for deadline_ms, delayed_id in string.gmatch(backoffs or '', '(%d+) (%x+)') do
    if delayed_id ~= id and tonumber(deadline_ms) > NOW_MS then others[#others + 1] = deadline_ms .. ' ' .. delayed_id end
  end
  return others
end

-- A backoff is a job's own and ends with it. Returns what is said of others.
local function remove_backoff(backoffs, id)
  if not backoffs or not string.find(backoffs, ' ' .. id, 1, true) then return backoffs end
  local others = table.concat(other_backoffs(backoffs, id), ' ')
  if others == '' then
    redis.call('HDEL', QUEUE_META, 'back')
    return nil
  end
  redis.call('HSET', QUEUE_META, 'back', others)
  return others
end

-- No jobs are left. Only places are left in l, if anything: it goes with them. True if there are none either.
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

-- A job is out of g: what l kept for it goes. Returns who is first now, as first_two, with the backoff; `alone` if
-- nobody is left, no place either.
local function leave_queue(id, bytes)
  local first = first_jobs()
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

-- Takes a job out of the line, or out of those that are late, for good. Its own key keeps what the status
-- tells.
local function remove_job(id, bytes)
  redis.call('ZREM', shard_key('exp'), id)
  uncount_job(bytes)
  uncount_for_owner(redis.call('HGET', shard_key('j:' .. id), 'owner'), id)
  local was_queued = redis.call('ZREM', JOBS, id) == 1
  if not was_queued and remove_delayed_job(id, bytes) then return end
  local first = leave_queue(id, was_queued and bytes or 0)
  -- It may have been its backoff that the lock is due at the end of.
  if #first > 0 then redis.call('ZADD', DUE, integer(NOW_MS), LOCK_NAME) end
end

-- Ends a request that ran at once and of which it is unknown how far it came: its record answers with that for ms.
local function end_direct_run(record_key, id, reason, retention_ms)
  local job_key = shard_key('j:' .. id)
  -- First, since a server without room refuses a script that begins by taking some: see renew.lua.
  redis.call('HDEL', job_key, '', 'til')
  redis.call('HSET', job_key, 'state', 'dead', 'reason', reason, 'ended', integer(NOW_US))
  redis.call('PEXPIRE', job_key, integer(retention_ms))
  local owner = redis.call('HGET', job_key, 'owner') or ''
  local owns_record = string.match(redis.call('GET', record_key) or '', '^%S+') == id
  if owns_record and redis.call('PTTL', record_key) < retention_ms then extend_record(record_key, retention_ms, owner) end
  add_to_index_and_count('dead', id, retention_ms, 0, redis.call('HINCRBY', SHARD_META, 'dead', 1), owner)
  redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
end

-- As look_at_direct; what crashed and must not run again is dead then. True if the record is free.
local function release_crashed_record(record_key, id)
  local outcome = check_direct_run(record_key, id)
  if outcome == 'crashed' then
    end_direct_run(record_key, id, 'crashed, may have run', math.max(redis.call('PTTL', shard_key('j:' .. id)), 1))
  end
  return outcome == 'again'
end

-- Ends a job that waits, 'cancelled' or 'expired', with a reason, unless that is ''. It is kept so many
-- ms, without its request, and is in no index: how many there were is counted.
local function end_waiting_job(id, bytes, state, reason, retention_ms, superseded_by)
  local job_key = shard_key('j:' .. id)
  -- First: a server without room refuses what begins by taking some.
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

-- Ends a job that waits past its deadline.
local function expire_job(id, bytes)
  end_waiting_job(id, bytes, 'expired', 'deadline', STATUS_RETENTION_MS)
end
