-- Settles a run: ends its job or returns it to the queue, and claims the next job of the lock.
--
-- `settle_job` is the other kind of item of claim_settle_batch.lua, which includes this file after
-- claim_lock_and_job.lua.
--
-- Input, of `settle_job`:
--   id           job id; '-' to undo the claim of an unknown job
--   token        run token
--   verb         one of those below
--   duration_ms  retention (done, dead, cancelled, webhook_settled) or delay (the other verbs), ms
--   reason       reason; of done, the HTTP status of the response; of webhook_settled,
--                '<end that was reported, us> <status of the answer, or 0: dead> <reason if dead>'
--   response     stored response, or ''
--   next_token   token of the next run, or '': claim no job
--   lease_ms     lease of the next run, ms
--   keep_ms      retention of jobs that end without the next run, ms
-- Verbs:
--   done             the job has its response
--   dead             the job is given up
--   cancelled        an operator has cancelled the run: as cancel_job.lua; no next run starts
--   webhook_settled  end of a webhook job, done or dead. If the reported job has ended again
--                    meanwhile, the webhook job returns to the queue instead: `enqueue_webhook`
--                    leaves that to this verb if it finds the webhook job running.
--   retry            the job runs again after the delay
--   postpone         as retry, without charging the attempt: no route, a newer envelope version, a
--                    nested lock that was busy
--   return_to_queue  as postpone, of a worker that drains: the next worker takes the job up at
--                    once, so no other job overtakes it
--   undo             as return_to_queue, of a claim without a caller. If the job does not have this
--                    run token, the job that has it is looked up.
-- Output:
--   {'lost'}          the run is no longer the job's: nothing was written
--   {'ok'}            settled
--   {'claimed', ...}  settled, and the next run has started: as claim_lock_and_job.lua
-- Complexity: O(log n).
-- A settlement needs the job's run token, and the lock held under it.
-- Idempotent: a call with the same tokens gets the same reply, and finds a next run by its token. A
-- repeated call starts no run, because it may be a late copy without a caller.
local END_VERBS = {done = true, dead = true}

-- Returns the first job if all of these hold: no live waiter precedes it, it is not in backoff, a
-- worker watches the shard.
local function next_runnable_job(first)
  if #first == 0 then return nil end
  local waiter_sequence = first_live_waiter()
  if waiter_sequence and waiter_sequence < tonumber(first[2]) then return nil end
  if backoff_end(first[3], first[1]) or not watching_node() then return nil end
  return first[1]
end

-- Starts the run of the next job, if that may run now and its envelope fits in the reply. Jobs past
-- their deadline end here. A dead one is left to a claim, which reports it.
local function start_next_run(first, token, lease_ms, keep_ms)
  for _ = 1, 8 do
    local id = next_runnable_job(first)
    if not id then return nil end
    local job, envelope = load_job(id), redis.call('GET', shard_key('b:' .. id))
    local state, reason = unrunnable_state(id, job, envelope)
    if not state and exceeds_answer(job.bytes) then return nil end
    if not state then
      return start_run(id, token, lease_ms, job, envelope, first.has_more)
    end
    if state == 'dead' then return nil end
    first = end_without_run(id, job, envelope, state, reason, keep_ms)
  end
  return nil
end

-- Ends the job with this run. Returns the first job as `dequeue_ended_job` does.
local function end_run(id, job, verb, retention_ms, reason, response)
  local job_key, status = shard_key('j:' .. id), nil
  if verb == 'done' then reason, status = '', reason end
  redis.call('HSET', job_key, 'state', verb, 'reason', reason, 'ended', NOW_TEXT, 'runs',
    append_run(job, status and 'done' or reason))
  redis.call('PEXPIRE', job_key, retention_ms)
  if verb == 'done' then
    redis.call('SET', shard_key('r:' .. id), response, 'PX', retention_ms)
    redis.call('UNLINK', shard_key('b:' .. id))
  else
    redis.call('PEXPIRE', shard_key('b:' .. id), retention_ms)
  end
  if job.exp then redis.call('ZREM', shard_key('exp'), id) end
  local first = dequeue_ended_job(
    id,
    job.bytes,
    verb,
    retention_ms,
    job.owner,
    verb == 'done' and #response
  )
  enqueue_webhook(id, job.call, verb == 'dead' and retention_ms, status)
  return first
end

-- Queues the job for another run after the delay: it keeps its place and later jobs wait, or it is
-- delayed and later jobs overtake it. Returns the first job as `leave_queue` does.
local function requeue_job(id, job, verb, delay_ms, reason)
  local job_key, attempts = shard_key('j:' .. id), job.attempts
  if verb ~= 'retry' then attempts = math.max(attempts - 1, 0) end
  -- An undone claim was no run, so the history does not have it.
  local history = verb == 'undo' and (job.runs or '') or append_run(job, reason)
  redis.call('HSET', job_key, 'state', 'queued', 'attempts', attempts, 'reason', reason,
    'runs', history)
  if verb == 'postpone' and reason == 'busy' then redis.call('HINCRBY', job_key, 'busy', '1') end
  mark_changed(id)
  if (verb == 'retry' or verb == 'postpone') and redis.call('HGET', job_key, 'skip') == '1' then
    redis.call('ZREM', JOBS, id)
    add_delayed_job(id, NOW_MS + delay_ms, job.bytes)
    return leave_queue(id, job.bytes)
  end
  -- Other jobs may be in backoff too: an older job may have returned in front of one that is.
  local backoffs = other_backoffs(redis.call('HGET', QUEUE_META, 'back') or nil, id)
  table.insert(backoffs, 1, integer(NOW_MS + delay_ms) .. ' ' .. id)
  backoffs = table.concat(backoffs, ' ', 1, math.min(#backoffs, MAX_BACKOFFS))
  redis.call('HSET', QUEUE_META, 'back', backoffs)
  redis.call('PERSIST', QUEUE_META)
  local first = first_job()
  first[3] = backoffs
  return first
end

-- Returns the job of this lock that has this run token. A running job is near the front of the
-- queue: only jobs that return to an older place can precede it.
local function find_run(token)
  for _, id in ipairs(redis.call('ZRANGE', JOBS, '0', SCAN_LIMIT - 1)) do
    if redis.call('HGET', shard_key('j:' .. id), 'run') == token then return id, load_job(id) end
  end
  return nil
end

-- Returns the verb, duration and reason that the verb 'webhook_settled' stands for.
local function webhook_outcome(id, retention_ms, summary)
  local reported_end_us, status, reason = string.match(summary, '^(%d+) (%d+) (.*)$')
  local ended_us =
    string.match(redis.call('HGET', shard_key('j:' .. id), 'end') or '', '^%S+ %d+ (%d+) ')
  if ended_us and ended_us ~= reported_end_us then return 'postpone', 1, 'ended again' end
  if status == '0' then return 'dead', retention_ms, reason end
  return 'done', retention_ms, status
end

-- Returns the reply to an earlier call with these tokens.
local function repeated_reply(next_token, lease_ms)
  if next_token == '' then return {'ok'} end
  local id, job = find_run(next_token)
  return id and repeat_claim(id, next_token, lease_ms, job) or {'ok'}
end

local function settle_job(
  id,
  token,
  verb,
  duration_ms,
  reason,
  response,
  next_token,
  lease_ms,
  keep_ms
)
  local job = load_job(id)
  if verb == 'undo' and job.run ~= token then id, job = find_run(token) end
  if not id or job.run ~= token then return {'lost'} end
  if job.state ~= 'running' then
    -- Nothing of the claim is left to undo, but a late copy of it may still arrive. After 'lost',
    -- the caller of the undo keeps watching for that.
    if verb == 'undo' then return {'lost'} end
    return repeated_reply(next_token, lease_ms)
  end
  -- An exclusive holder is the only member of h, and h expires with it. If the member exists, its
  -- lease has not ended.
  if redis.call('ZREM', HOLDERS, 'h' .. token) == 0 then return {'lost'} end
  if verb == 'webhook_settled' then
    verb, duration_ms, reason = webhook_outcome(id, duration_ms, reason)
  end
  local first
  if END_VERBS[verb] then
    first = end_run(id, job, verb, duration_ms, reason, response)
  elseif verb == 'cancelled' then
    redis.call('HSET', shard_key('j:' .. id), 'runs', append_run(job, reason))
    -- `end_waiting_job` offers the lock to the next waiter or job, so no run starts here.
    end_waiting_job(id, job.bytes, verb, '', duration_ms)
    return {'ok'}
  elseif job.exp and tonumber(job.exp) <= NOW_MS then
    if verb ~= 'retry' then
      redis.call('HSET', shard_key('j:' .. id),
        'attempts', integer(math.max(job.attempts - 1, 0)))
    end
    -- An undone claim was no run.
    if verb ~= 'undo' then
      redis.call('HSET', shard_key('j:' .. id), 'runs', append_run(job, reason))
    end
    -- `expire_job` offers the lock to the next waiter or job, so no run starts here.
    expire_job(id, job.bytes)
    return {'ok'}
  else
    first = requeue_job(id, job, verb, duration_ms, reason)
  end
  local next_claim =
    next_token ~= '' and start_next_run(first, next_token, lease_ms, keep_ms)
  if next_claim then return next_claim end
  -- The lock is free: `offer_next` also sets the time of the next poll. An empty queue needs none.
  if not first.is_queue_empty then offer_next() end
  return {'ok'}
end
