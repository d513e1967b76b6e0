-- Provides the checks of one job and of one lock's queue.
--
-- Part of the script `fsck`, after wait_queue.lua, ended_job_bookkeeping.lua,
-- pending_job_bookkeeping.lua, dequeue_ended_job.lua and claim_lock_and_job.lua, and before
-- fsck_indexes.lua and fsck_check_repair_keys.lua. fsck_run_check.lua describes the call.
-- Expects KEYS[1] and ARGV[2] of that call.
--
-- - A check is atomic and reads all that it compares, so work of live processes between two checks
--   is never reported as a fault.
-- - Without `REPAIR` it changes nothing.
-- - It repairs only faults that it understands. A key of another type, and a value that no script
--   writes, are reported and left alone.
-- - No repair ends a job that can still run.
--
-- FSCK_SHARD_PREFIX  prefix of every key of the shard
-- REPAIR             true if faults are to be repaired
-- findings           {kind, name, detail, '1' if repaired}; kind is a wire name of `FindingKind`
local FSCK_SHARD_PREFIX, REPAIR = string.match(KEYS[1], '^(.*}:)'), ARGV[2] == '1'
local findings = {}
-- Tolerated delay of a poll, ms; and time for which an orphaned run is left to the workers, ms: the
-- lease of a dead worker's shard watch, and the time that its successor needs.
local SLACK_MS, ORPHAN_GRACE_MS = 10000, 60000

-- Error with which the server refuses every write, such as READONLY or OOM. Nothing is repaired
-- then, and this error is the reply of the call.
local server_error

-- Adds a finding and runs its repair, if requested. A failed repair leaves the finding unrepaired.
local function report(kind, name, detail, repair)
  local is_repaired, fault = false, nil
  if REPAIR and repair then is_repaired, fault = pcall(repair) end
  if fault and not is_repaired then
    local text = type(fault) == 'table' and fault.err or tostring(fault)
    for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
      local start = string.find(text, code, 1, true)
      if start then server_error = redis.error_reply(string.sub(text, start)) end
    end
  end
  findings[#findings + 1] = {kind, name, detail or '', is_repaired and '1' or '0'}
end

local function short_name(key) return string.sub(key, #FSCK_SHARD_PREFIX + 1) end

-- Returns true if the key has this type, false if there is no key, and nil if it has another type,
-- which is reported.
local function has_type(key, expected)
  local actual = redis.call('TYPE', key).ok
  if actual == 'none' then return false end
  if actual == expected then return true end
  report('wrong_type', short_name(key), actual)
  return nil
end

-- Returns true if no key of the queue has another type. Only then is anything of the queue
-- repaired, since a repair might otherwise stop halfway.
local function queue_has_types()
  local is_well_typed = true
  for key, expected in pairs({
    [HOLDERS] = 'zset', [QUEUE_META] = 'hash', [WAITERS] = 'zset', [JOBS] = 'zset', [DUE] = 'zset',
    [SHARD_META] = 'hash'
  }) do
    if has_type(key, expected) == nil then is_well_typed = false end
  end
  return is_well_typed
end

-- Checks that a key which is still needed has no TTL.
local function expect_no_ttl(key)
  if redis.call('PTTL', key) < 0 then return end
  report('unexpected_expiry', short_name(key), '', function() redis.call('PERSIST', key) end)
end

-- Checks that a key which must expire has a TTL; the repair sets it to `ms`.
local function expect_ttl(key, ms)
  if redis.call('PTTL', key) ~= -1 then return end
  report('missing_expiry', short_name(key), '', function()
    redis.call('PEXPIRE', key, integer(math.max(ms, 1)))
  end)
end

-- Parses a stored count; a missing one is 0. Returns `default` for text that is no number: -1
-- differs from every count.
local function parse_count(text, default) return tonumber(text or '0') or default or 0 end

local function is_job_id(id) return #id == 34 and string.find(id, '^%x+$') ~= nil end

local CHECKED_FIELDS = {
  'state', 'lock', 'run', 'bytes', 'exp', 'again', 'max', 'attempts', 'direct', 'seq', 'gone',
  'owner'
}

-- Returns the job and false; nil and false without a record; nil and true if its key has another
-- type.
local function read_job(id)
  local exists = has_type(shard_key('j:' .. id), 'hash')
  if not exists then return nil, exists == nil end
  local values, job = redis.call('HMGET', shard_key('j:' .. id), unpack(CHECKED_FIELDS)), {}
  for i, field in ipairs(CHECKED_FIELDS) do job[field] = values[i] or nil end
  job.is_pending = job.state == 'queued' or job.state == 'running'
  return job, false
end

-- Returns the latest deadline of a holder or an offer, or nil if the lock is free. Unlike
-- `expire_holders` it removes nothing.
local function held_until_ms()
  local latest = redis.call('ZRANGE', HOLDERS, -1, -1, 'WITHSCORES')
  return latest[2] and tonumber(latest[2]) > NOW_MS and tonumber(latest[2]) or nil
end

-- Ends a job that cannot run any more as a dead letter, and offers the lock to the next entry.
local function fail_job(id, reason)
  end_without_run(
    id, load_job(id), redis.call('GET', shard_key('b:' .. id)), 'dead', reason, STATUS_RETENTION_MS
  )
  if redis.call('EXISTS', JOBS) == 1 then redis.call('ZADD', DUE, integer(NOW_MS), LOCK_NAME) end
  offer_next()
end

-- Checks the keys of a pending job: no TTL on its record and its envelope, its deadline in the
-- index.
local function check_job_keys(id, job)
  expect_no_ttl(shard_key('j:' .. id))
  if has_type(shard_key('b:' .. id), 'string') then expect_no_ttl(shard_key('b:' .. id)) end
  local deadline_ms = tonumber(job.exp or '')
  if
    deadline_ms and deadline_ms > NOW_MS + 1000
    and not redis.call('ZSCORE', shard_key('exp'), id)
  then
    report('deadline_not_indexed', id, '', function()
      redis.call('ZADD', shard_key('exp'), integer(deadline_ms), id)
    end)
  end
end

-- Returns true if the run of a job still holds the lock. A run that has lost it is taken back by
-- the next due poll of the lock. It is reported if that poll is missing, too late, or overdue by
-- `ORPHAN_GRACE_MS`.
local function check_run(id, job)
  local deadline_ms = job.run and redis.call('ZSCORE', HOLDERS, 'h' .. job.run)
  if deadline_ms and tonumber(deadline_ms) > NOW_MS then return true end
  local due_ms = tonumber(redis.call('ZSCORE', DUE, LOCK_NAME) or '')
  local is_scheduled = due_ms
    and due_ms > NOW_MS - ORPHAN_GRACE_MS
    and due_ms <= math.max(held_until_ms() or NOW_MS, NOW_MS) + SLACK_MS
  if is_scheduled then return false end
  local may_repeat = job.again == '1' and parse_count(job.attempts) < parse_count(job.max)
  report('orphaned_run', id, LOCK_NAME, function()
    -- The next poll runs a repeatable job again.
    if may_repeat then schedule(NOW_MS) else fail_job(id, 'crashed, may have run') end
  end)
  return false
end

-- Checks a job in the queue of the selected lock.
local function check_queued_job(id)
  if not is_job_id(id) then return report('invalid_value', short_name(JOBS), id) end
  local job, is_mistyped = read_job(id)
  if is_mistyped then return end
  if not job then
    return report('entry_without_job', id, LOCK_NAME, function() fail_job(id, 'lost') end)
  end
  if job.lock ~= LOCK_NAME then
    return report('invalid_value', id, 'in the queue of another lock')
  end
  local bytes = parse_count(job.bytes)
  if not job.is_pending then
    return report('ended_job_in_index', id, LOCK_NAME, function()
      redis.call('ZREM', JOBS, id)
      leave_queue(id, bytes)
    end)
  end
  if redis.call('ZSCORE', shard_key('late'), id) then
    report('job_indexed_twice', id, LOCK_NAME, function() remove_delayed_job(id, bytes) end)
  end
  check_job_keys(id, job)
  local is_running = job.state == 'running' and check_run(id, job)
  -- The worker of a live run has the envelope already.
  if not is_running and redis.call('EXISTS', shard_key('b:' .. id)) == 0 then
    report('job_without_envelope', id, LOCK_NAME, function() fail_job(id, 'lost') end)
  end
end

-- Checks the due time of the selected lock: missing or too late with jobs, needless without.
local function check_due()
  local due_ms = tonumber(redis.call('ZSCORE', DUE, LOCK_NAME) or '')
  local first = redis.call('ZRANGE', JOBS, 0, 0)[1]
  if not first then
    if not due_ms then return end
    return report('scheduled_without_jobs', LOCK_NAME, '', function()
      redis.call('ZREM', DUE, LOCK_NAME)
      clear_queue_meta()
    end)
  end
  local function schedule_now() schedule(NOW_MS) end
  if not due_ms then return report('lock_not_scheduled', LOCK_NAME, '', schedule_now) end
  local backoff_ms = backoff_end(redis.call('HGET', QUEUE_META, 'back'), first)
  -- A held lock advances its queue when it is released. A free lock waits for this poll.
  if not held_until_ms() and due_ms > (backoff_ms or NOW_MS) + SLACK_MS then
    local detail = 'in ' .. integer(due_ms - NOW_MS) .. ' ms'
    report('lock_scheduled_too_late', LOCK_NAME, detail, schedule_now)
  end
end

-- Checks the bytes of a queue; `ids` are all of its jobs.
local function check_queue_bytes(ids)
  local total_bytes, recorded_bytes =
    0, parse_count(redis.call('HGET', QUEUE_META, 'bytes') or nil, -1)
  for _, id in ipairs(ids) do
    if redis.call('TYPE', shard_key('j:' .. id)).ok ~= 'hash' then return end
    total_bytes = total_bytes
      + parse_count(redis.call('HGET', shard_key('j:' .. id), 'bytes') or nil)
  end
  if total_bytes == recorded_bytes then return end
  report(
    'wrong_count', short_name(QUEUE_META),
    'bytes ' .. integer(recorded_bytes) .. ', there are ' .. integer(total_bytes),
    function() redis.call('HSET', QUEUE_META, 'bytes', integer(total_bytes)) end
  )
end
