-- Acquires a lock, confirms an offer, or takes a place in the line. One call is all three, so that a
-- retry after a lost reply and the confirmation of an offer need nothing of their own.
--
-- A step of lock_batch.lua. KEYS the line (wait_queue.lua)   record: key of an idempotency record to look up
-- before a free lock is taken, or nil   me: '<nonce>:<node>'   mode: x, s or p   lease, ms   numbers: most
-- at once, for p; how long a place may wait, ms, 0 = try; old sequence: of a lapsed offer, of the place of
-- a reader of the same process, or when the caller came, if its process had the lock until now, 0 = none
-- Returns {'held', fence, others in line, sequences of the first of them that can be served and of the first such job,
--          each 0 if there is none, now us}
--       | {'busy', ms until the deadline it waits for, length of the line, my sequence or 0, 1 if this
--          call put me into the line (the caller gives its old sequence once, then waits at the tail)}
--       | {'known', record}: this request was accepted before; nothing was taken
-- O(log n) in holders and places. Idempotent by nonce: mine already (held or offered) -> held, with
-- a new and larger fence, and for as long as before if that was longer: a copy that was late shortens nothing. If the caller has gone, release.lua with the same nonce undoes it.

-- The sequence at the head of the line, and whose place it is; nil if nobody can be served.
local function queue_head()
  local sequence, waiter = first_live_waiter()
  local job_sequence = first_eligible_job()
  if job_sequence and (not sequence or job_sequence < sequence) then return job_sequence, nil end
  return sequence, waiter
end

-- Whether somebody of this old sequence would pass the first in line, and those before him have done so
-- for one accept window already. Slow ones that come back to their old place, and readers who come with
-- that of their process, enter beside those who are in; whoever waits for all of these to leave must not
-- wait for one more after the other.
local function barging_expired(old_sequence)
  local first_sequence = queue_head()
  if not first_sequence or old_sequence >= first_sequence then return false end
  local overtaken_sequence, deadline_ms = string.match(redis.call('HGET', QUEUE_META, 'past') or '', '^(%d+) (%d+)$')
  if overtaken_sequence and tonumber(overtaken_sequence) >= first_sequence then return tonumber(deadline_ms) <= NOW_MS end
  redis.call('HSET', QUEUE_META, 'past', integer(first_sequence) .. ' ' .. integer(NOW_MS + OFFER_TIMEOUT_MS))
  if redis.call('EXISTS', JOBS) == 0 then extend_ttl(QUEUE_META, OFFER_TIMEOUT_MS) end
  return false
end

-- What its holder is told of the line.
local function grant_reply(fence)
  local queue_length = redis.call('ZCARD', WAITERS) + redis.call('ZCARD', JOBS)
  local first_sequence, job_sequence = 0, 0
  if queue_length > 0 then
    first_sequence, job_sequence = first_live_waiter() or 0, first_eligible_job() or 0
    if job_sequence > 0 and (first_sequence == 0 or job_sequence < first_sequence) then first_sequence = job_sequence end
  end
  return {'held', fence, queue_length, integer(first_sequence), integer(job_sequence), integer(NOW_US)}
end

local function grant_and_reply(token, mode, lease_ms)
  local fence = grant(token, mode, lease_ms)
  -- Others of my mode may stand next, and nobody else will tell them.
  if mode ~= 'x' then offer_next() end
  return grant_reply(fence)
end

local function acquire(token, mode, lease_ms, terms, record_key)
  local limit, wait_ms, old_sequence = string.match(terms, '(%d+) (%d+) (%d+)')
  limit, wait_ms, old_sequence = tonumber(limit), tonumber(wait_ms), tonumber(old_sequence)

  -- The usual case, one look: nobody holds it, nobody waits.
  if not record_key and redis.call('EXISTS', HOLDERS, WAITERS, JOBS) == 0 then
    return {'held', grant(token, mode, lease_ms, true), 0, 0, 0, integer(NOW_US)}
  end

  local latest_ms, held_mode = expire_holders()
  local own_deadline_ms = redis.call('ZSCORE', HOLDERS, 'h' .. MODE_TAGS[mode] .. token)
  if not own_deadline_ms and record_key then
    -- Before a free lock is taken: a retry after a lost 202 must find its job, not run again.
    local record = redis.call('GET', record_key)
    -- A crashed PUT runs again, here. A crashed POST becomes dead by the call that looks for its job.
    local job_id = record and string.match(record, '^%S+')
    if job_id and check_direct_run(record_key, job_id) ~= 'again' then return {'known', record} end
  end
  if own_deadline_ms then lease_ms = math.max(lease_ms, tonumber(own_deadline_ms) - NOW_MS) end
  if own_deadline_ms or redis.call('ZREM', HOLDERS, 'o' .. MODE_TAGS[mode] .. token) == 1 then
    return grant_and_reply(token, mode, lease_ms)
  end

  local own_entry = redis.call('HGET', QUEUE_META, '@' .. token)
  if own_entry and not redis.call('ZSCORE', WAITERS, own_entry) then own_entry = nil end
  -- Who has a place has no other: also where this call comes a second time.
  if own_entry or (old_sequence > 0 and mode ~= 'x' and held_mode ~= 'x' and barging_expired(old_sequence)) then old_sequence = 0 end
  if is_admissible(mode, limit, held_mode) then
    local first_sequence, first_token = queue_head()
    if not first_sequence or first_token == token or (old_sequence > 0 and old_sequence < first_sequence) then
      if own_entry then remove_waiter(own_entry) end
      -- Jobs that are passed over keep their turn: their lock has an end to wait for again.
      -- (One that is due already stays so: a worker's look ends the passing over, also while I hold.)
      local due_ms = tonumber(redis.call('ZSCORE', DUE, LOCK_NAME) or '0')
      if redis.call('EXISTS', JOBS) == 1 and (due_ms == 0 or due_ms > NOW_MS) then schedule(NOW_MS + lease_ms) end
      return grant_and_reply(token, mode, lease_ms)
    end
    -- Looking for the head drops places past their deadline, mine too if I come back too late.
    if own_entry and not redis.call('ZSCORE', WAITERS, own_entry) then own_entry = nil end
  end

  local sequence, has_joined = 0, 0
  if wait_ms > 0 then
    if own_entry then
      sequence = tonumber(redis.call('ZSCORE', WAITERS, own_entry))
      remove_waiter(own_entry)
    else
      -- Never later than a newcomer: should the server's clock have stepped back, old is of the future.
      sequence = next_sequence()
      if old_sequence > 0 then sequence = math.min(old_sequence, sequence) end
      has_joined = 1
      notify_holders('q', sequence)
    end
    add_waiter(token, mode, limit, sequence, wait_ms)
  end
  -- Every visit to a lock with room moves its line on. Those before me may have been of my mode: then I
  -- am among those who come in.
  if held_mode ~= 'x' then
    offer_next()
    if mode ~= 'x' and redis.call('ZREM', HOLDERS, 'o' .. MODE_TAGS[mode] .. token) == 1 then
      return grant_and_reply(token, mode, lease_ms)
    end
  end
  local remaining_ms, queue_length = busy_status(mode, limit)
  return {'busy', remaining_ms, queue_length, integer(sequence), has_joined}
end
