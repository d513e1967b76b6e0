-- Tells who holds a lock in mode x who stands in its line, and gives its process more fences: what acquire.lua tells
-- with a grant, told again while it is held. The lease stays as it is: that is renew.lua's.
--
-- A step of calls.lua. KEYS the line (line.lua)   me: '<nonce>:<node>'
-- Returns as acquire.lua what follows 'held'; the fence and the spare ones after it are larger than all before
--       | 'lost' it is not held any more; nothing was touched
-- O(log n). Run twice, or for a caller that has gone, it leaves out some fences.
local function still(me)
  local held = redis.call('ZSCORE', H, 'h' .. me)
  if not held or tonumber(held) <= NOW then return 'lost' end
  return held_by(next_fence())
end
