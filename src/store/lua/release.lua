-- Step of lock_batch.lua: removes everything that a token has (the lock, an offer of it, a queue
-- entry), and offers the freed lock to the head of the queue. Release and offer are one step, which
-- wakes one process.
--
-- Input: `release(token, mode, _, arrived_us)`, for the selected lock (wait_queue.lua)
--   token           '<nonce>:<node>'
--   mode            x, s or p
--   arrived_us      arrival of the next step's caller, for a lock that was held in mode x; or ''
--   holder_removed  (from lock_batch_fast.lua) true if the lock was held in mode x and in time, and
--                   its holder was removed already
-- Output:
--   'released'   it was held
--   'withdrawn'  it was an offer or a queue entry
--   'lost'       it was held, but its lease had ended
--   'none'       the token had nothing; nothing was changed
-- Complexity: O(log n).
-- Idempotent: a second call finds nothing. A caller that is gone makes no difference.

-- Returns true if the freed lock is left to the next step: its caller arrived before every entry of
-- the queue, and an offer to the head would let a later arrival overtake it. False while sequences
-- are ahead of the clock, as after the clock was set back: until then every new arrival is before
-- the queue, and would overtake it again and again.
local function is_left_to_next_step(arrived_us)
  local first_sequence = tonumber(arrived_us) and queue_head()
  return first_sequence
    and tonumber(arrived_us) < first_sequence
    and tonumber(redis.call('HGET', SHARD_META, 'seq') or '0') <= NOW_US
end

local function release(token, mode, _, arrived_us)
  if holder_removed then
    if not is_left_to_next_step(arrived_us) then offer_next() end
    return 'released'
  end
  local mode_tag = MODE_TAGS[mode]
  local held = redis.call('ZSCORE', HOLDERS, 'h' .. mode_tag .. token)
  if not held and mode_tag == '' then
    -- The lock was downgraded, and the reply was lost.
    held = redis.call('ZSCORE', HOLDERS, 'hs' .. token)
    if held then mode_tag = 's' end
  end
  if held then
    redis.call('ZREM', HOLDERS, 'h' .. mode_tag .. token)
    held = tonumber(held) > NOW_MS and 'released' or 'lost'
    -- The usual case: no other holder and no queue. (Without q, the token has no queue entry.)
    if redis.call('EXISTS', HOLDERS, WAITERS, JOBS) == 0 then return held end
  end
  -- Offers of both modes: a downgraded holder may have asked again before the downgrade was over.
  local had_offer =
    redis.call('ZREM', HOLDERS, 'o' .. mode_tag .. token, 'o' .. MODE_TAGS[mode] .. token) > 0
  local own_entry = redis.call('HGET', QUEUE_META, '@' .. token)
  if own_entry then
    local is_queued = redis.call('ZSCORE', WAITERS, own_entry)
    remove_waiter(own_entry)
    -- l outlives q while there are jobs, so its field may name an entry that expired with q.
    if not is_queued then own_entry = nil end
  end
  if not held and not had_offer and not own_entry then return 'none' end
  if held ~= 'released' or not is_left_to_next_step(arrived_us) then offer_next() end
  return held or 'withdrawn'
end
