-- Gives back whatever this nonce has (the lock, an offer of it, a place in the line) and offers the
-- freed lock to the head of the line: release and grant are one step, and wake one process.
--
-- A step of calls.lua. KEYS the line (line.lua)   me: '<nonce>:<node>'   mode: x, s or p   came: when whoever asks for
-- it in the next step came, if it was held in mode x; else ''   `taken`: it was held alone and in time, and usual.lua has
-- taken it out of h
-- Returns 'released' it was held | 'left' it was a place or an offer | 'lost' it was held, but past
-- its deadline | 'none' nothing of this nonce was there; nothing was touched
-- O(log n). Run twice, the second run finds nothing. A caller that has gone changes nothing.

-- Whether a free lock is left to the next step, whose caller came before all who stand in line: offered to the first
-- of them, it would pass to one who came later. Not while sequences are ahead of the clock, which was put back then: all
-- who come now came before them, by the clock, and would have the lock for ever.
local function left_to(came)
  local first = tonumber(came) and head()
  return first and tonumber(came) < first and tonumber(redis.call('HGET', F, 'seq') or '0') <= NOW_US
end

local function release(me, mode, _, came)
  if taken then
    if not left_to(came) then move_on() end
    return 'released'
  end
  local tag = TAG[mode]
  local held = redis.call('ZSCORE', H, 'h' .. tag .. me)
  if not held and tag == '' then
    -- What a downgrade has made of it, whose answer was lost.
    held = redis.call('ZSCORE', H, 'hs' .. me)
    if held then tag = 's' end
  end
  if held then
    redis.call('ZREM', H, 'h' .. tag .. me)
    held = tonumber(held) > NOW and 'released' or 'lost'
    -- The usual case: nobody else has it, nobody waits. (Where q is not, no place of mine is.)
    if redis.call('EXISTS', H, Q, G) == 0 then return held end
  end
  -- Of both modes: who was downgraded may have asked again before that was over.
  local offered = redis.call('ZREM', H, 'o' .. tag .. me, 'o' .. TAG[mode] .. me) > 0
  local place = redis.call('HGET', L, '@' .. me)
  if place then
    local stands = redis.call('ZSCORE', Q, place)
    drop_place(place)
    -- l outlives q while there are jobs: its fields may name places that q's TTL has taken.
    if not stands then place = nil end
  end
  if not held and not offered and not place then return 'none' end
  if held ~= 'released' or not left_to(came) then move_on() end
  return held or 'left'
end
