-- Ends a run: done with its response, dead with a reason, or back to run again; and begins the next of the line.
--
-- A step of run_batch.lua. id   me: its run token   verb: 'done' | 'dead' | 'told' | 'retry' | 'back' | 'hand' | 'undo'
-- ms: retention (done, dead, told), delay (retry, back, hand)   reason; of 'done' the response's status, for its call;
-- of 'told' the end that was told (us), the status of the answer or 0, and the reason if it is dead
-- response: stored (done) or ''
-- next: token of the run of the next job, or ''; with `lease` and `keep`, ms, as for claim_job.lua
-- Returns {'lost'} the run is not the job's any more: nothing was written
--       | {'ok'} the verdict stands | {'claimed', ..} it does, and the next job's run has begun (as claim_job.lua)
-- 'back' gives the attempt back (no route, an envelope of a newer version, a nested lock that was busy). 'hand' is the
-- same in a drain: the job is for whoever comes next, at once, and so nobody passes it. 'undo' is the same for a claim
-- whose caller has gone; he may not even know which job it was. 'told' is how a call ends, done or dead; if it has
-- another end to tell of by now, it goes back instead: whoever brought that end found it running, and left it to this.
-- O(log n). Needs the job's run token and the lock under it. Repeated with the same tokens: the same answer; what
-- was begun along is found by its token. A repeated call begins nothing: it might be a late one, and the run for
-- nobody.
local END_VERBS = {done = true, dead = true}

-- The first job, if it is in turn: no live place stands before it, it is not in backoff, a worker watches.
local function next_runnable_job(first)
  if #first == 0 then return nil end
  local waiter_sequence = first_live_waiter()
  if waiter_sequence and waiter_sequence < tonumber(first[2]) then return nil end
  if backoff_end(first[3], first[1]) or not watching_node() then return nil end
  return first[1]
end

-- The run of the next job that may have one, and has room in this answer. Those that came too late end here; a dead one is left to a visit,
-- which tells of it.
local function start_next_run(first, token, lease_ms, keep_ms)
  for _ = 1, 8 do
    local id = next_runnable_job(first)
    if not id then return nil end
    local job, envelope = load_job(id), redis.call('GET', shard_key('b:' .. id))
    local state, reason = unrunnable_state(id, job, envelope)
    if not state and exceeds_answer(job.bytes) then return nil end
    if not state then return start_run(id, token, lease_ms, job, envelope, first.has_more) end
    if state == 'dead' then return nil end
    first = end_without_run(id, job, envelope, state, reason, keep_ms)
  end
  return nil
end

-- The job has ended with this run. Returns who is first now.
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
  local first = finish_job(id, job.bytes, verb, retention_ms, job.owner, verb == 'done' and #response)
  enqueue_webhook(id, job.call, verb == 'dead' and retention_ms, status)
  return first
end

-- The job runs again after a while: it stays at its place and the others wait, or it waits elsewhere and they
-- pass. Returns who is first now.
local function requeue_job(id, job, verb, delay_ms, reason)
  local job_key, attempts = shard_key('j:' .. id), job.attempts
  if verb ~= 'retry' then attempts = math.max(attempts - 1, 0) end
  -- What never began was no run.
  local history = verb == 'undo' and (job.runs or '') or append_run(job, reason)
  redis.call('HSET', job_key, 'state', 'queued', 'attempts', attempts, 'reason', reason, 'runs', history)
  if verb == 'back' and reason == 'busy' then redis.call('HINCRBY', job_key, 'busy', '1') end
  mark_changed(id)
  if (verb == 'retry' or verb == 'back') and redis.call('HGET', job_key, 'skip') == '1' then
    redis.call('ZREM', JOBS, id)
    add_delayed_job(id, NOW_MS + delay_ms, job.bytes)
    return leave_queue(id, job.bytes)
  end
  -- An older one may have come back in front of one that is in backoff itself.
  local backoffs = other_backoffs(redis.call('HGET', QUEUE_META, 'back') or nil, id)
  table.insert(backoffs, 1, integer(NOW_MS + delay_ms) .. ' ' .. id)
  backoffs = table.concat(backoffs, ' ', 1, math.min(#backoffs, MAX_BACKOFFS))
  redis.call('HSET', QUEUE_META, 'back', backoffs)
  redis.call('PERSIST', QUEUE_META)
  local first = first_jobs()
  first[3] = backoffs
  return first
end

-- The job in this line whose run has this token. A running one stands at the front: only those that come back to
-- an older place can be before it.
local function find_run(token)
  for _, id in ipairs(redis.call('ZRANGE', JOBS, '0', SCAN_LIMIT - 1)) do
    if redis.call('HGET', shard_key('j:' .. id), 'run') == token then return id, load_job(id) end
  end
  return nil
end

-- What a call's end comes to: verb, ms, reason.
local function webhook_outcome(id, retention_ms, summary)
  local told_us, status, reason = string.match(summary, '^(%d+) (%d+) (.*)$')
  local ended_us = string.match(redis.call('HGET', shard_key('j:' .. id), 'end') or '', '^%S+ %d+ (%d+) ')
  if ended_us and ended_us ~= told_us then return 'back', 1, 'ended again' end
  if status == '0' then return 'dead', retention_ms, reason end
  return 'done', retention_ms, status
end

-- What a call with these tokens has been answered before.
local function repeat_answer(next_token, lease_ms)
  if next_token == '' then return {'ok'} end
  local id, job = find_run(next_token)
  return id and repeat_claim(id, next_token, lease_ms, job) or {'ok'}
end

local function settle_job(id, token, verb, duration_ms, reason, response, next_token, lease_ms, keep_ms)
  local job = load_job(id)
  if verb == 'undo' and job.run ~= token then id, job = find_run(token) end
  if not id or job.run ~= token then return {'lost'} end
  if job.state ~= 'running' then
    -- Nothing of a claim is left to be undone; a copy of it may come yet, and whoever looks for that goes on.
    if verb == 'undo' then return {'lost'} end
    return repeat_answer(next_token, lease_ms)
  end
  -- Who is in mode x is alone, and h ends with him: if he is there, he is in time.
  if redis.call('ZREM', HOLDERS, 'h' .. token) == 0 then return {'lost'} end
  if verb == 'told' then verb, duration_ms, reason = webhook_outcome(id, duration_ms, reason) end
  local first
  if END_VERBS[verb] then
    first = end_run(id, job, verb, duration_ms, reason, response)
  elseif job.exp and tonumber(job.exp) <= NOW_MS then
    if verb ~= 'retry' then redis.call('HSET', shard_key('j:' .. id), 'attempts', integer(math.max(job.attempts - 1, 0))) end
    -- What never began was no run.
    if verb ~= 'undo' then redis.call('HSET', shard_key('j:' .. id), 'runs', append_run(job, reason)) end
    -- It moves the line on: the next one is offered the lock, and not begun here.
    expire_job(id, job.bytes)
    return {'ok'}
  else
    first = requeue_job(id, job, verb, duration_ms, reason)
  end
  local next_claim = next_token ~= '' and start_next_run(first, next_token, lease_ms, keep_ms)
  if next_claim then return next_claim end
  -- The lock is free: moving on says when a worker should look again. Of nobody there is nothing to say.
  if not first.is_queue_empty then offer_next() end
  return {'ok'}
end
