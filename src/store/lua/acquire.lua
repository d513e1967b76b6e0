-- Acquires a lock, confirms an offer, or takes a place in the line. One call is all three, so that a
-- retry after a lost reply and the confirmation of an offer need nothing of their own.
--
-- KEYS[1..7] the line (line.lua)   KEYS[8] idempotency record, read only if ARGV[9] is 1
-- ARGV[1..3] as line.lua   ARGV[4] '<nonce>:<node>'   ARGV[5] lease, ms   ARGV[6] spare fences
-- ARGV[7] how long a place may wait, ms; 0 = try   ARGV[8] old sequence of a lapsed offer, or 0
-- ARGV[9] 1 to look up the idempotency record first
-- Returns {'held', fence, others in line}
--       | {'busy', ms until the last deadline, length of the line, my sequence or 0, 1 if this call
--          put me into the line (the caller gives its old sequence once, then waits at the tail)}
--       | {'known', record}: this request was accepted before; nothing was taken
-- O(log n) in holders and places. Idempotent by nonce: mine already (held or offered) -> held, with
-- a new and larger fence. If the caller has gone, release.lua with the same nonce undoes it.
local me, lease, spare = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local wait, old = tonumber(ARGV[7]), tonumber(ARGV[8])

-- The usual case, one look: nobody holds it, nobody waits.
if ARGV[9] ~= '1' and redis.call('EXISTS', H, Q, G) == 0 then
  return {'held', grant(me, lease, spare), 0}
end

local last = held_until()
local mine = redis.call('ZSCORE', H, 'h' .. me)
if not mine and ARGV[9] == '1' then
  -- Before a free lock is taken: a retry after a lost 202 must find its job, not run again.
  local record = redis.call('GET', KEYS[8])
  if record then return {'known', record} end
end
local line = redis.call('ZCARD', Q) + redis.call('ZCARD', G)
if mine then return {'held', grant(me, lease, spare), line} end
if redis.call('ZREM', H, 'o' .. me) == 1 then return {'held', grant(me, lease, spare), line} end

local place = redis.call('HGET', L, '@' .. me)
if place and not redis.call('ZSCORE', Q, place) then place = nil end
if not last then
  local seq, who = live_head()
  local job_seq = jobs_head()
  local first = seq
  if job_seq and (not first or job_seq < first) then first, who = job_seq, nil end
  if not first or who == me or (old > 0 and old < first) then
    if place then drop_place(place) end
    -- Jobs that are passed over keep their turn: their lock has an end to wait for again.
    -- (One that is due already stays so: a worker's look ends the passing over, also while I hold.)
    local due = tonumber(redis.call('ZSCORE', DUE, NAME) or '0')
    if redis.call('EXISTS', G) == 1 and (due == 0 or due > NOW) then arm(NOW + lease) end
    line = redis.call('ZCARD', Q) + redis.call('ZCARD', G)
    return {'held', grant(me, lease, spare), line}
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
    seq = old > 0 and old or next_seq()
    joined = 1
    tell_holders(seq)
  end
  add_place(me, seq, wait)
end
-- Every visit to a free lock moves its line on.
if not last then move_on() end
local left, length = busy_for(held_until() or NOW + ACCEPT)
return {'busy', left, length, int(seq), joined}
