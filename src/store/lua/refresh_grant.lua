-- Tells who holds a lock in mode x who stands in its line, and gives its process more fences: what acquire.lua tells
-- with a grant, told again while it is held. The lease stays as it is: that is renew.lua's.
--
-- A step of lock_batch.lua. KEYS the line (wait_queue.lua)   me: '<nonce>:<node>'
-- Returns as acquire.lua what follows 'held'; the fence and the spare ones after it are larger than all before
--       | 'lost' it is not held any more; nothing was touched
-- O(log n). Run twice, or for a caller that has gone, it leaves out some fences.
local function refresh_grant(token)
  local deadline_ms = redis.call('ZSCORE', HOLDERS, 'h' .. token)
  if not deadline_ms or tonumber(deadline_ms) <= NOW_MS then return 'lost' end
  return grant_reply(next_fence())
end
