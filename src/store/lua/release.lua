-- Gives back whatever this nonce has (the lock, an offer of it, a place in the line) and offers the
-- freed lock to the head of the line: release and grant are one step, and wake one process.
--
-- KEYS[1..7] the line (line.lua)   ARGV[1..3] as line.lua   ARGV[4] '<nonce>:<node>'
-- Returns 'released' it was held | 'left' it was a place or an offer | 'lost' it was held, but past
-- its deadline | 'none' nothing of this nonce was there; nothing was touched
-- O(log n). Run twice, the second run finds nothing. A caller that has gone changes nothing.
local me = ARGV[4]
local held = redis.call('ZSCORE', H, 'h' .. me)
local offered = redis.call('ZSCORE', H, 'o' .. me)
local place = redis.call('HGET', L, '@' .. me)
if place then
  local stands = redis.call('ZSCORE', Q, place)
  drop_place(place)
  -- l outlives q while there are jobs: its fields may name places that q's TTL has taken.
  if not stands then place = nil end
end
if not held and not offered then return place and 'left' or 'none' end
redis.call('ZREM', H, 'h' .. me, 'o' .. me)
if not held_until() then move_on() end
if not held then return 'left' end
return tonumber(held) > NOW and 'released' or 'lost'
