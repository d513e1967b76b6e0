-- A worker's visit to a lock that has jobs: takes the lock for the first job and starts its run.
--
-- A step of run_batch.lua. id: the job the worker believes is first   me: run token '<nonce>:<node>'   lease, ms
-- keep: retention of dead jobs, ms
-- Returns {'claimed', id, fence, attempt, envelope, accepted at us, 1 = another job stands behind it}
--       | {'busy', ms} held by somebody else until then, or the answer is full | {'later', ms} in backoff
--       | {'moved', id} another job is first now | {'empty'} no jobs here
--       | {'dead', id} it has ended: a crash, its deadline
-- O(log n). The owner while it runs is the run token, never the job's id: a second claim is busy, a
-- repeated one with the same token is the same claim, and once its run is over it is refused. A job
-- stays in g while it runs. One that is found running, and whose token is gone from h, has crashed: its worker
-- died, or was paused past its lease.
-- A number that goes to a command is made text there; this one goes to several.
local NOW_TEXT = integer(NOW_US)
local JOB_FIELDS = {'state', 'run', 'attempts', 'bytes', 'at', 'exp', 'began', 'runs', 'owner', 'call'}

-- Longest time between two looks of a worker, whatever it hears, in ms (AMONG_OTHERS in rounds.rs).
local HEARTBEAT_MS = 10000

-- Most bytes of requests in one answer, which has to come in time, and those that there are. One goes in any case.
local MAX_ANSWER_BYTES, ANSWER_BYTES = 4194304, 0
local function exceeds_answer(bytes) return ANSWER_BYTES > 0 and ANSWER_BYTES + bytes > MAX_ANSWER_BYTES end

local function load_job(id)
  local values, job = redis.call('HMGET', shard_key('j:' .. id), unpack(JOB_FIELDS)), {}
  for i, field in ipairs(JOB_FIELDS) do job[field] = values[i] or nil end
  job.attempts, job.bytes = tonumber(job.attempts or '0'), tonumber(job.bytes or '0')
  return job
end

-- The history with one more run, of which the last twenty are told.
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

-- What ends a job instead of a run of it: its state then, and the reason; nil if it may run.
local function unrunnable_state(id, job, envelope)
  if not job.state or not envelope then return 'dead', 'lost' end
  if job.state == 'running' then
    local values = redis.call('HMGET', shard_key('j:' .. id), 'again', 'max')
    if values[1] ~= '1' or job.attempts >= tonumber(values[2] or '1') then return 'dead', 'crashed, may have run' end
  end
  if job.exp and tonumber(job.exp) <= NOW_MS then return 'expired', 'deadline' end
  return nil
end

-- Returns who is first now, as finish. What its vanished key would have said of a call is nobody's any more.
local function end_without_run(id, job, envelope, state, reason, keep_ms)
  local job_key, request_key = shard_key('j:' .. id), shard_key('b:' .. id)
  if state == 'expired' then keep_ms = STATUS_RETENTION_MS end
  -- What its vanished key said is what its request still is, or nothing.
  local bytes = job.state and job.bytes or #(envelope or '') + redis.call('STRLEN', shard_key('t:' .. id))
  redis.call('ZREM', HOLDERS, 'j' .. id)
  redis.call('HSET', job_key, 'state', state, 'reason', reason, 'ended', NOW_TEXT, 'lock', LOCK_NAME)
  if job.state == 'running' then record_crash(job_key, job) end
  -- Its last run may still be alive somewhere, only slow: it must learn that its verdict is void.
  redis.call('HDEL', job_key, 'run')
  redis.call('PEXPIRE', job_key, keep_ms)
  if state == 'dead' then redis.call('PEXPIRE', request_key, keep_ms) else redis.call('UNLINK', request_key) end
  if job.exp then redis.call('ZREM', shard_key('exp'), id) end
  if not job.state then redis.call('UNLINK', shard_key('t:' .. id)) end
  local first = finish_job(id, bytes, state, keep_ms, job.owner)
  enqueue_webhook(id, job.call, state == 'dead' and keep_ms)
  return first
end

-- Starts a run of the first job, whose turn it is.
local function start_run(id, token, lease_ms, job, envelope, has_more)
  local job_key, attempt = shard_key('j:' .. id), job.attempts + 1
  -- A repeated claim has a larger one, and is this run: whatever is below the first is an earlier run's.
  local fence = grant(token, 'x', lease_ms)
  redis.call('HSET', job_key, 'state', 'running', 'run', token, 'attempts', attempt, 'began', NOW_TEXT, 'reason', '',
    'fence', fence)
  if job.state == 'running' then record_crash(job_key, job) end
  -- What is further away than a beat is found by one before its time; of what comes sooner the watcher has to hear, or
  -- it would have no timer, and others would take this entry for one that has.
  if lease_ms < HEARTBEAT_MS then schedule(NOW_MS + lease_ms) else redis.call('ZADD', DUE, integer(NOW_MS + lease_ms), LOCK_NAME) end
  mark_changed(id)
  ANSWER_BYTES = ANSWER_BYTES + #envelope
  return {'claimed', id, fence, attempt, envelope, job.at or '0', has_more and 1 or 0}
end

-- The run that this token has begun, if it goes on.
local function repeat_claim(id, token, lease_ms, job)
  local deadline_ms = redis.call('ZSCORE', HOLDERS, 'h' .. token)
  if job.state ~= 'running' or not deadline_ms or tonumber(deadline_ms) <= NOW_MS then return nil end
  local envelope, has_more = redis.call('GET', shard_key('b:' .. id)), redis.call('ZCARD', JOBS) > 1
  if not envelope then return nil end
  ANSWER_BYTES = ANSWER_BYTES + #envelope
  -- As acquire.lua: a copy that was late shortens nothing.
  lease_ms = math.max(lease_ms, tonumber(deadline_ms) - NOW_MS)
  return {'claimed', id, grant(token, 'x', lease_ms), job.attempts, envelope, job.at or '0', has_more and 1 or 0}
end

-- What is in the way of the first job; nil if nothing is. A visit has to move what is due, or it would be due at
-- once again.
local function blocking_reply(id, sequence, backoffs)
  -- Mostly there is neither a holder nor a place: one look for both.
  local is_idle = redis.call('EXISTS', HOLDERS, WAITERS) == 0
  local latest_ms = not is_idle and expire_holders() or nil
  local backoff_ms = backoff_end(backoffs, id)
  if backoff_ms then
    redis.call('ZADD', DUE, integer(backoff_ms), LOCK_NAME)
    offer_next()
    return {'later', integer(backoff_ms - NOW_MS)}
  end
  if is_idle then return nil end
  local offer_ms = latest_ms and redis.call('ZSCORE', HOLDERS, 'j' .. id)
  if latest_ms and not offer_ms then
    redis.call('ZADD', DUE, integer(latest_ms), LOCK_NAME)
    return {'busy', integer(latest_ms - NOW_MS)}
  end
  local waiter_sequence = not offer_ms and first_live_waiter()
  if waiter_sequence and waiter_sequence < sequence then
    -- A live place stands before the job: a worker's visit moves the line on for it too.
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
    -- Also where g itself has vanished: what was kept for it must not stay for ever.
    redis.call('ZREM', DUE, LOCK_NAME)
    clear_queue_meta()
    return {'empty'}
  end
  -- What was accepted runs also without room, and makes some: see renew.lua.
  redis.call('ZREM', HOLDERS, '')
  local values, job = redis.call('HMGET', QUEUE_META, 'park', 'back'), first[1] == id and load_job(id)
  -- It goes with the next call. Nothing has been touched: the line is due as it was.
  if job and job.run ~= token and exceeds_answer(job.bytes) then return {'busy', 1} end
  if values[1] then redis.call('HDEL', QUEUE_META, 'park') end
  if not job then
    -- An older job has come back in front of a run that goes on: a repeated claim is that run's all the same, or it
    -- would be nobody's.
    local running_job = redis.call('ZSCORE', HOLDERS, 'h' .. token) and load_job(id)
    return running_job and running_job.run == token and repeat_claim(id, token, lease_ms, running_job) or {'moved', first[1]}
  end
  -- A token starts one run. It comes again, late, after that run was settled, given back or lost: nobody
  -- waits for this answer, and nobody would execute another run.
  if job.run == token then return repeat_claim(id, token, lease_ms, job) or {'busy', integer(OFFER_TIMEOUT_MS)} end
  local blocked = blocking_reply(id, tonumber(first[2]), values[2])
  if blocked then return blocked end
  -- The backoff is over.
  remove_backoff(values[2] or nil, id)
  local envelope = redis.call('GET', shard_key('b:' .. id))
  local state, reason = unrunnable_state(id, job, envelope)
  if not state then return start_run(id, token, lease_ms, job, envelope, first[3]) end
  end_without_run(id, job, envelope, state, reason, keep_ms)
  -- The lock is free: moving on says when a worker should look again.
  offer_next()
  return {'dead', id}
end
