-- Claims the first job of a lock together with the lock, and starts its run.
--
-- `claim_job` is one kind of item of claim_settle_batch.lua, which includes this file after
-- dequeue_ended_job.lua. settle_job_and_claim_next.lua and the store check (src/store/fsck) use the
-- other functions too.
--
-- Input, of `claim_job`:
--   id        job that the worker believes to be first
--   token     run token, '<nonce>:<node>'
--   lease_ms  lease of the lock, ms
--   keep_ms   retention of dead jobs, ms
-- Output:
--   {'claimed', id, fence, attempt, envelope, acceptance time in us, 1 if another job follows}
--     and, unless the claim is repeated, 1 if the lock was free without an offer to the job, or 0.
--     1 means that the last holder did not release the lock, or that no worker watched the shard.
--     Then the time since the start of the run that has crashed, in us, or 0 if none has.
--   {'busy', ms}       the lock cannot be claimed for this time: another holder has it, a waiter
--                      precedes the job, the reply is full, or the run of this token has ended
--   {'not_due', ms}    the job is in backoff for this time
--   {'not_first', id}  this other job is first
--   {'empty'}          the lock has no jobs
--   {'ended', id}      the job has ended without another run: it was lost, it crashed, or its
--                      deadline has passed
-- Complexity: O(log n).
-- The holder is the run token, never the job id: a second claim finds the lock busy. A repeated
-- claim with the same token returns the same run, and starts no other after that has ended.
-- A job stays in g while it runs. If a running job's token is no longer in h, the job has
-- crashed: its worker died, or was stopped past its lease.

-- Server time as text, made once because several commands use it (see `integer`).
local NOW_TEXT = integer(NOW_US)
local JOB_FIELDS = {
  'state', 'run', 'attempts', 'bytes', 'at', 'exp', 'began', 'runs', 'owner', 'call'
}

-- Longest time between two polls of a worker, with or without wake-ups, ms:
-- PEER_HEARTBEAT_INTERVAL of job_dispatcher.rs.
local MAX_POLL_INTERVAL_MS = 10000

-- Maximum number of envelope bytes in one reply, which must arrive in time, and the bytes so far.
-- The first envelope of a reply may be larger.
local MAX_REPLY_BYTES, REPLY_BYTES = 4194304, 0
local function exceeds_answer(bytes)
  return REPLY_BYTES > 0 and REPLY_BYTES + bytes > MAX_REPLY_BYTES
end

local function load_job(id)
  local values, job = redis.call('HMGET', shard_key('j:' .. id), unpack(JOB_FIELDS)), {}
  for i, field in ipairs(JOB_FIELDS) do job[field] = values[i] or nil end
  job.attempts, job.bytes = tonumber(job.attempts or '0'), tonumber(job.bytes or '0')
  return job
end

-- Returns the job's history with the last run appended, at most 20 runs.
local function append_run(job, outcome)
  local entry = job.attempts .. ' ' .. (job.began or '0') .. ' ' .. NOW_TEXT .. ' ' .. outcome
  if not job.runs or job.runs == '' then return entry end
  local history = job.runs .. '\n' .. entry
  local _, lines = string.gsub(history, '\n', '')
  return lines < 20 and history or string.sub(history, string.find(history, '\n', 1, true) + 1)
end

local function record_crash(job_key, job)
  redis.call('HSET', job_key, 'runs', append_run(job, 'crashed'))
  redis.call('HINCRBY', job_key, 'crashes', '1')
end

-- Returns the state and reason with which a job that must not run ends; nil if it may run.
local function unrunnable_state(id, job, envelope)
  if not job.state or not envelope then return 'dead', 'lost' end
  if job.state == 'running' then
    local values = redis.call('HMGET', shard_key('j:' .. id), 'again', 'max')
    if values[1] ~= '1' or job.attempts >= tonumber(values[2] or '1') then
      return 'dead', 'crashed, may have run'
    end
  end
  if job.exp and tonumber(job.exp) <= NOW_MS then return 'expired', 'deadline' end
  return nil
end

-- Ends a job that must not run. Returns the first job as `dequeue_ended_job` does. A vanished
-- job key takes the job's webhook with it.
local function end_without_run(id, job, envelope, state, reason, keep_ms)
  local job_key, request_key = shard_key('j:' .. id), shard_key('b:' .. id)
  if state == 'expired' then keep_ms = STATUS_RETENTION_MS end
  -- If the job's key has vanished, its size is that of the requests that are left.
  local bytes =
    job.state and job.bytes or #(envelope or '') + redis.call('STRLEN', shard_key('t:' .. id))
  redis.call('ZREM', HOLDERS, 'j' .. id)
  redis.call('HSET', job_key, 'state', state, 'reason', reason, 'ended', NOW_TEXT,
    'lock', LOCK_NAME)
  if job.state == 'running' then record_crash(job_key, job) end
  -- The last run may be alive, only slow. Without `run` its settlement is answered with 'lost'.
  redis.call('HDEL', job_key, 'run')
  redis.call('PEXPIRE', job_key, keep_ms)
  if state == 'dead' then
    redis.call('PEXPIRE', request_key, keep_ms)
  else
    redis.call('UNLINK', request_key)
  end
  if job.exp then redis.call('ZREM', shard_key('exp'), id) end
  if not job.state then redis.call('UNLINK', shard_key('t:' .. id)) end
  local first = dequeue_ended_job(id, bytes, state, keep_ms, job.owner)
  enqueue_webhook(id, job.call, state == 'dead' and keep_ms)
  return first
end

-- Starts a run of the first job. The caller has checked that it may run now.
local function start_run(id, token, lease_ms, job, envelope, has_more)
  local job_key, attempt = shard_key('j:' .. id), job.attempts + 1
  -- A repeated claim gets a larger fence for the same run. A fence below this first one belongs to
  -- an earlier run.
  local fence = grant(token, 'x', lease_ms)
  redis.call('HSET', job_key, 'state', 'running', 'run', token, 'attempts', attempt,
    'began', NOW_TEXT, 'reason', '', 'fence', fence)
  if job.state == 'running' then record_crash(job_key, job) end
  -- A heartbeat finds a due time that is further away than MAX_POLL_INTERVAL_MS. An earlier one
  -- must be announced to the watching node, which sets a timer for it: later calls rely on the
  -- timer of the earliest entry.
  if lease_ms < MAX_POLL_INTERVAL_MS then
    schedule(NOW_MS + lease_ms)
  else
    redis.call('ZADD', DUE, integer(NOW_MS + lease_ms), LOCK_NAME)
  end
  mark_changed(id)
  REPLY_BYTES = REPLY_BYTES + #envelope
  return {'claimed', id, fence, attempt, envelope, job.at or '0', has_more and 1 or 0}
end

-- Returns the run that this token has started, with its lease extended; nil if it has ended.
local function repeat_claim(id, token, lease_ms, job)
  local deadline_ms = redis.call('ZSCORE', HOLDERS, 'h' .. token)
  if job.state ~= 'running' or not deadline_ms or tonumber(deadline_ms) <= NOW_MS then
    return nil
  end
  local envelope, has_more =
    redis.call('GET', shard_key('b:' .. id)),
    redis.call('ZCARD', JOBS) > 1
  if not envelope then return nil end
  REPLY_BYTES = REPLY_BYTES + #envelope
  -- As in acquire.lua, a late copy never shortens the lease.
  lease_ms = math.max(lease_ms, tonumber(deadline_ms) - NOW_MS)
  return {
    'claimed',
    id,
    grant(token, 'x', lease_ms),
    job.attempts,
    envelope,
    job.at or '0',
    has_more and 1 or 0
  }
end

-- Returns the reply if the first job cannot start now; nil if it can. Each of these replies moves
-- the due time of the lock, or the lock would be due again at once.
local function blocking_reply(id, sequence, backoffs)
  -- Usually there is neither a holder nor a waiter; one command checks both.
  local is_idle = redis.call('EXISTS', HOLDERS, WAITERS) == 0
  local latest_ms = not is_idle and expire_holders() or nil
  local backoff_ms = backoff_end(backoffs, id)
  if backoff_ms then
    redis.call('ZADD', DUE, integer(backoff_ms), LOCK_NAME)
    offer_next()
    return {'not_due', integer(backoff_ms - NOW_MS)}
  end
  if is_idle then return nil end
  local offer_ms = latest_ms and redis.call('ZSCORE', HOLDERS, 'j' .. id)
  if latest_ms and not offer_ms then
    redis.call('ZADD', DUE, integer(latest_ms), LOCK_NAME)
    return {'busy', integer(latest_ms - NOW_MS)}
  end
  local waiter_sequence = not offer_ms and first_live_waiter()
  if waiter_sequence and waiter_sequence < sequence then
    -- A live waiter precedes the job. The claim advances the queue for it too.
    redis.call('ZADD', DUE, integer(NOW_MS + OFFER_TIMEOUT_MS), LOCK_NAME)
    offer_next()
    return {'busy', integer(OFFER_TIMEOUT_MS)}
  end
  if offer_ms then redis.call('ZREM', HOLDERS, 'j' .. id) end
  return nil
end

local function claim_job(id, token, lease_ms, keep_ms)
  local first = redis.call('ZRANGE', JOBS, '0', '1', 'WITHSCORES')
  if #first == 0 then
    -- If g has vanished, its due time and its fields in l are left, which must not stay for ever.
    redis.call('ZREM', DUE, LOCK_NAME)
    clear_queue_meta()
    return {'empty'}
  end
  -- An accepted job runs at `maxmemory` too, and its end frees memory. So the first write is one
  -- that allocates nothing (see renew.lua).
  redis.call('ZREM', HOLDERS, '')
  local values, job =
    redis.call('HMGET', QUEUE_META, 'park', 'back'),
    first[1] == id and load_job(id)
  -- The reply is full: the job is left to the next call. The due time of the lock is unchanged.
  if job and job.run ~= token and exceeds_answer(job.bytes) then return {'busy', 1} end
  if values[1] then redis.call('HDEL', QUEUE_META, 'park') end
  if not job then
    -- An older job may have returned in front of a running one. A repeated claim still gets its
    -- run, which no worker would execute otherwise.
    local running_job = redis.call('ZSCORE', HOLDERS, 'h' .. token) and load_job(id)
    return running_job
      and running_job.run == token
      and repeat_claim(id, token, lease_ms, running_job)
      or {'not_first', first[1]}
  end
  -- A token starts one run. If that was settled, returned or lost, this call is a late copy: no
  -- caller awaits the reply, and no worker would execute another run.
  if job.run == token then
    return repeat_claim(id, token, lease_ms, job) or {'busy', integer(OFFER_TIMEOUT_MS)}
  end
  local blocked = blocking_reply(id, tonumber(first[2]), values[2])
  if blocked then return blocked end
  local was_not_offered = not values[1] and job.state == 'queued'
    and not string.find(values[2] or '', id, 1, true)
  -- The backoff, if there was one, is over.
  remove_backoff(values[2] or nil, id)
  local envelope = redis.call('GET', shard_key('b:' .. id))
  local state, reason = unrunnable_state(id, job, envelope)
  if not state then
    local reply = start_run(id, token, lease_ms, job, envelope, first[3])
    local began_us = job.state == 'running' and tonumber(job.began)
    reply[8] = was_not_offered and 1 or 0
    reply[9] = began_us and integer(math.max(NOW_US - began_us, 1)) or '0'
    return reply
  end
  end_without_run(id, job, envelope, state, reason, keep_ms)
  -- The lock is free: `offer_next` also sets the time of the next poll.
  offer_next()
  return {'ended', id}
end
