-- Acquires a lock, confirms an offer, or takes a place in the line. One call is all three, so that a
-- retry after a lost reply and the confirmation of an offer need nothing of their own.
--
-- A step of calls.lua. KEYS the line (line.lua)   record: key of an idempotency record to look up
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
local function head()
  local seq, who = live_head()
  local job_seq = jobs_head()
  if job_seq and (not seq or job_seq < seq) then return job_seq, nil end
  return seq, who
end

-- Whether somebody of this old sequence would pass the first in line, and those before him have done so
-- for one accept window already. Slow ones that come back to their old place, and readers who come with
-- that of their process, enter beside those who are in; whoever waits for all of these to leave must not
-- wait for one more after the other.
local function passes_too_late(old)
  local first = head()
  if not first or old >= first then return false end
  local whom, til = string.match(redis.call('HGET', L, 'past') or '', '^(%d+) (%d+)$')
  if whom and tonumber(whom) >= first then return tonumber(til) <= NOW end
  redis.call('HSET', L, 'past', int(first) .. ' ' .. int(NOW + ACCEPT))
  if redis.call('EXISTS', G) == 0 then keep_ttl(L, ACCEPT) end
  return false
end

-- What its holder is told of the line.
local function held_by(fence)
  local line = redis.call('ZCARD', Q) + redis.call('ZCARD', G)
  local first, job = 0, 0
  if line > 0 then
    first, job = live_head() or 0, jobs_head() or 0
    if job > 0 and (first == 0 or job < first) then first = job end
  end
  return {'held', fence, line, int(first), int(job), int(NOW_US)}
end

local function granted(me, mode, lease)
  local fence = grant(me, mode, lease)
  -- Others of my mode may stand next, and nobody else will tell them.
  if mode ~= 'x' then move_on() end
  return held_by(fence)
end

local function acquire(me, mode, lease, numbers, record)
  local limit, wait, old = string.match(numbers, '(%d+) (%d+) (%d+)')
  limit, wait, old = tonumber(limit), tonumber(wait), tonumber(old)

  -- The usual case, one look: nobody holds it, nobody waits.
  if not record and redis.call('EXISTS', H, Q, G) == 0 then
    return {'held', grant(me, mode, lease, true), 0, 0, 0, int(NOW_US)}
  end

  local last, held = held_until()
  local mine = redis.call('ZSCORE', H, 'h' .. TAG[mode] .. me)
  if not mine and record then
    -- Before a free lock is taken: a retry after a lost 202 must find its job, not run again.
    local known = redis.call('GET', record)
    -- A crashed PUT runs again, here. A crashed POST becomes dead by the call that looks for its job.
    local id = known and string.match(known, '^%S+')
    if id and look_at_direct(record, id) ~= 'again' then return {'known', known} end
  end
  if mine then lease = math.max(lease, tonumber(mine) - NOW) end
  if mine or redis.call('ZREM', H, 'o' .. TAG[mode] .. me) == 1 then
    return granted(me, mode, lease)
  end

  local place = redis.call('HGET', L, '@' .. me)
  if place and not redis.call('ZSCORE', Q, place) then place = nil end
  -- Who has a place has no other: also where this call comes a second time.
  if place or (old > 0 and mode ~= 'x' and held ~= 'x' and passes_too_late(old)) then old = 0 end
  if fits(mode, limit, held) then
    local first, who = head()
    if not first or who == me or (old > 0 and old < first) then
      if place then drop_place(place) end
      -- Jobs that are passed over keep their turn: their lock has an end to wait for again.
      -- (One that is due already stays so: a worker's look ends the passing over, also while I hold.)
      local due = tonumber(redis.call('ZSCORE', DUE, NAME) or '0')
      if redis.call('EXISTS', G) == 1 and (due == 0 or due > NOW) then arm(NOW + lease) end
      return granted(me, mode, lease)
    end
    -- Looking for the head drops places past their deadline, mine too if I come back too late.
    if place and not redis.call('ZSCORE', Q, place) then place = nil end
  end

  local seq, joined = 0, 0
  if wait > 0 then
    if place then
      seq = tonumber(redis.call('ZSCORE', Q, place))
      drop_place(place)
    else
      -- Never later than a newcomer: should the server's clock have stepped back, old is of the future.
      seq = next_seq()
      if old > 0 then seq = math.min(old, seq) end
      joined = 1
      tell_holders('q', seq)
    end
    add_place(me, mode, limit, seq, wait)
  end
  -- Every visit to a lock with room moves its line on. Those before me may have been of my mode: then I
  -- am among those who come in.
  if held ~= 'x' then
    move_on()
    if mode ~= 'x' and redis.call('ZREM', H, 'o' .. TAG[mode] .. me) == 1 then
      return granted(me, mode, lease)
    end
  end
  local left, length = busy_for(mode, limit)
  return {'busy', left, length, int(seq), joined}
end
