-- Step of lock_batch.lua: issues a new fence for a lock held in mode x. It reserves spare fences
-- and reports the state of the queue, as acquire.lua does with a grant. The lease does not change
-- (renew.lua extends it).
--
-- Input: `refresh_grant(token)`, for the selected lock (wait_queue.lua)
--   token  '<nonce>:<node>'
-- Output:
--   {'held', ...}  as in acquire.lua; the fence and its spare ones are larger than all before
--   'lost'         not held any more; nothing was changed
-- Complexity: O(log n).
-- Repeated, or caller gone: some fences stay unused.
local function refresh_grant(token)
  local deadline_ms = redis.call('ZSCORE', HOLDERS, 'h' .. token)
  if not deadline_ms or tonumber(deadline_ms) <= NOW_MS then return 'lost' end
  return grant_reply(next_fence())
end
