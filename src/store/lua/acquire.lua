-- Step of lock_batch.lua and acquire_all.lua: acquires a lock, confirms an offer, or joins the wait
-- queue. One operation does all three, so a retry after a lost reply and the confirmation of an
-- offer need no operation of their own.
--
-- Input: `acquire(token, mode, lease_ms, terms, record_key)`, for the selected lock
-- (wait_queue.lua)
--   token       '<nonce>:<node>'
--   mode        x, s or p
--   terms       '<limit> <wait ms> <old sequence>'
--               limit: maximum of permits, for mode p
--               wait: lifetime of the queue entry; 0 does not join the queue
--               old sequence: of a lapsed offer, of the entry of a reader of the same process, or
--               the caller's arrival if its process has held the lock until now; 0 for none
--   record_key  idempotency record to check before a free lock is granted, or nil
-- Output:
--   {'held', fence, queue length, first sequence, job sequence, now us}
--     first sequence: of the first waiter or eligible job; 0 if there is none
--     job sequence: of the first eligible job; 0 if there is none
--   {'busy', ms, queue length, sequence, joined}
--     ms: time until the deadline that it waits for
--     sequence: of its queue entry; 0 if it has none
--     joined: 1 if this call added the entry (the caller passes an old sequence only once; from
--     then on it joins at the tail)
--   {'duplicate', record}
--     this request was accepted before; nothing was granted
-- Complexity: O(log n) in holders and queue entries.
-- Idempotent by token: a holder or an offered waiter gets 'held' with a new, larger fence. A lease
-- is never shortened, since this may be a delayed copy of a call.
-- Caller gone: release.lua with the same token undoes it.

-- Returns the sequence of the queue head, and its token unless it is a job; nil if no entry can be
-- served.
local function queue_head()
  local sequence, token = first_live_waiter()
  local job_sequence = first_eligible_job()
  if job_sequence and (not sequence or job_sequence < sequence) then return job_sequence, nil end
  return sequence, token
end

-- Returns true if an entry with `old_sequence` would overtake the queue head, and others have done
-- so for one offer timeout already. Slow waiters that return with the sequence of a lapsed offer,
-- and readers with that of their process, enter beside the holders. A head that needs all of them
-- to leave must not wait for one after another.
local function barging_expired(old_sequence)
  local first_sequence = queue_head()
  if not first_sequence or old_sequence >= first_sequence then return false end
  local overtaken_sequence, deadline_ms =
    string.match(redis.call('HGET', QUEUE_META, 'past') or '', '^(%d+) (%d+)$')
  if overtaken_sequence and tonumber(overtaken_sequence) >= first_sequence then
    return tonumber(deadline_ms) <= NOW_MS
  end
  redis.call(
    'HSET', QUEUE_META, 'past',
    integer(first_sequence) .. ' ' .. integer(NOW_MS + OFFER_TIMEOUT_MS)
  )
  if redis.call('EXISTS', JOBS) == 0 then extend_ttl(QUEUE_META, OFFER_TIMEOUT_MS) end
  return false
end

-- Returns the reply to a holder, with the state of the queue.
local function grant_reply(fence)
  local queue_length = redis.call('ZCARD', WAITERS) + redis.call('ZCARD', JOBS)
  local first_sequence, job_sequence = 0, 0
  if queue_length > 0 then
    first_sequence, job_sequence = first_live_waiter() or 0, first_eligible_job() or 0
    if job_sequence > 0 and (first_sequence == 0 or job_sequence < first_sequence) then
      first_sequence = job_sequence
    end
  end
  return {
    'held', fence, queue_length, integer(first_sequence), integer(job_sequence), integer(NOW_US)
  }
end

local function grant_and_reply(token, mode, lease_ms)
  local fence = grant(token, mode, lease_ms)
  -- Waiters of the same mode may be next, and no other operation would offer the lock to them.
  if mode ~= 'x' then offer_next() end
  return grant_reply(fence)
end

local function acquire(token, mode, lease_ms, terms, record_key)
  local limit, wait_ms, old_sequence = string.match(terms, '(%d+) (%d+) (%d+)')
  limit, wait_ms, old_sequence = tonumber(limit), tonumber(wait_ms), tonumber(old_sequence)

  -- The usual case takes one command: no holder and no queue.
  if not record_key and redis.call('EXISTS', HOLDERS, WAITERS, JOBS) == 0 then
    return {'held', grant(token, mode, lease_ms, true), 0, 0, 0, integer(NOW_US)}
  end

  local _, held_mode = expire_holders()
  local own_deadline_ms = redis.call('ZSCORE', HOLDERS, 'h' .. MODE_TAGS[mode] .. token)
  if not own_deadline_ms and record_key then
    -- Checked before a free lock is granted: a retry after a lost 202 must find its job instead of
    -- running again.
    local record = redis.call('GET', record_key)
    -- A crashed PUT runs again, here. A crashed POST becomes dead in the call that reads its job.
    local job_id = record and string.match(record, '^%S+')
    if job_id and check_direct_run(record_key, job_id) ~= 'rerun' then
      return {'duplicate', record}
    end
  end
  if own_deadline_ms then lease_ms = math.max(lease_ms, tonumber(own_deadline_ms) - NOW_MS) end
  if own_deadline_ms or redis.call('ZREM', HOLDERS, 'o' .. MODE_TAGS[mode] .. token) == 1 then
    return grant_and_reply(token, mode, lease_ms)
  end

  local own_entry = redis.call('HGET', QUEUE_META, '@' .. token)
  if own_entry and not redis.call('ZSCORE', WAITERS, own_entry) then own_entry = nil end
  -- A token has at most one queue entry, even if this call is repeated.
  if own_entry or (
    old_sequence > 0 and mode ~= 'x' and held_mode ~= 'x' and barging_expired(old_sequence)
  ) then
    old_sequence = 0
  end
  if is_admissible(mode, limit, held_mode) then
    local first_sequence, first_token = queue_head()
    if not first_sequence or first_token == token
      or (old_sequence > 0 and old_sequence < first_sequence)
    then
      if own_entry then remove_waiter(own_entry) end
      -- Skipped jobs keep their position: the next poll of their lock is now at the end of this
      -- lease. (If it is due already, it stays so: a poll ends the skipping, even during a hold.)
      local due_ms = tonumber(redis.call('ZSCORE', DUE, LOCK_NAME) or '0')
      if redis.call('EXISTS', JOBS) == 1 and (due_ms == 0 or due_ms > NOW_MS) then
        schedule(NOW_MS + lease_ms)
      end
      return grant_and_reply(token, mode, lease_ms)
    end
    -- The search for the head removes expired entries, so this one too if it came back too late.
    if own_entry and not redis.call('ZSCORE', WAITERS, own_entry) then own_entry = nil end
  end

  local sequence, has_joined = 0, 0
  if wait_ms > 0 then
    if own_entry then
      sequence = tonumber(redis.call('ZSCORE', WAITERS, own_entry))
      remove_waiter(own_entry)
    else
      -- Never later than a new arrival: after the server's clock was set back, the old sequence is
      -- in the future.
      sequence = next_sequence()
      if old_sequence > 0 then sequence = math.min(old_sequence, sequence) end
      has_joined = 1
      notify_holders('q', sequence)
    end
    add_waiter(token, mode, limit, sequence, wait_ms)
  end
  -- Every operation on a lock with room advances its queue. The entries before this one may have
  -- its mode: then it is offered the lock with them.
  if held_mode ~= 'x' then
    offer_next()
    if mode ~= 'x' and redis.call('ZREM', HOLDERS, 'o' .. MODE_TAGS[mode] .. token) == 1 then
      return grant_and_reply(token, mode, lease_ms)
    end
  end
  local remaining_ms, queue_length = busy_status(mode, limit)
  return {'busy', remaining_ms, queue_length, integer(sequence), has_joined}
end
