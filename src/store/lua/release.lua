-- Gives back whatever this nonce has (the lock, an offer of it, a place in the line) and offers the
-- freed lock to the head of the line: release and grant are one step, and wake one process.
--
-- A step of lock_batch.lua. KEYS the line (wait_queue.lua)   me: '<nonce>:<node>'   mode: x, s or p   came: when whoever asks for
-- it in the next step came, if it was held in mode x; else ''   `taken`: it was held alone and in time, and lock_batch_fast.lua has
-- taken it out of h
-- Returns 'released' it was held | 'left' it was a place or an offer | 'lost' it was held, but past
-- its deadline | 'none' nothing of this nonce was there; nothing was touched
-- O(log n). Run twice, the second run finds nothing. A caller that has gone changes nothing.

-- Whether a free lock is left to the next step, whose caller came before all who stand in line: offered to the first
-- of them, it would pass to one who came later. Not while sequences are ahead of the clock, which was put back then: all
-- who come now came before them, by the clock, and would have the lock for ever.
local function is_left_to_next_step(arrived_us)
  local first_sequence = tonumber(arrived_us) and queue_head()
  return first_sequence and tonumber(arrived_us) < first_sequence and tonumber(redis.call('HGET', SHARD_META, 'seq') or '0') <= NOW_US
end

local function release(token, mode, _, arrived_us)
  if holder_removed then
    if not is_left_to_next_step(arrived_us) then offer_next() end
    return 'released'
  end
  local mode_tag = MODE_TAGS[mode]
  local held = redis.call('ZSCORE', HOLDERS, 'h' .. mode_tag .. token)
  if not held and mode_tag == '' then
    -- What a downgrade has made of it, whose answer was lost.
    held = redis.call('ZSCORE', HOLDERS, 'hs' .. token)
    if held then mode_tag = 's' end
  end
  if held then
    redis.call('ZREM', HOLDERS, 'h' .. mode_tag .. token)
    held = tonumber(held) > NOW_MS and 'released' or 'lost'
    -- The usual case: nobody else has it, nobody waits. (Where q is not, no place of mine is.)
    if redis.call('EXISTS', HOLDERS, WAITERS, JOBS) == 0 then return held end
  end
  -- Of both modes: who was downgraded may have asked again before that was over.
  local had_offer = redis.call('ZREM', HOLDERS, 'o' .. mode_tag .. token, 'o' .. MODE_TAGS[mode] .. token) > 0
  local own_entry = redis.call('HGET', QUEUE_META, '@' .. token)
  if own_entry then
    local is_queued = redis.call('ZSCORE', WAITERS, own_entry)
    remove_waiter(own_entry)
    -- l outlives q while there are jobs: its fields may name places that q's TTL has taken.
    if not is_queued then own_entry = nil end
  end
  if not held and not had_offer and not own_entry then return 'none' end
  if held ~= 'released' or not is_left_to_next_step(arrived_us) then offer_next() end
  return held or 'left'
end
