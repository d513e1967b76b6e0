-- Step of lock_batch.lua: turns an exclusive hold into a shared one, and offers the lock to the
-- readers at the head of the queue.
--
-- Input: `downgrade(token, _, lease_ms)`, for the selected lock (wait_queue.lua)
--   token  '<nonce>:<node>'
-- Output:
--   'ok'
--   'lost'  not held any more; nothing was changed
-- Complexity: O(log n).
-- Idempotent: a second call finds the shared hold.
local function downgrade(token, _, lease_ms)
  local shared_deadline_ms = redis.call('ZSCORE', HOLDERS, 'hs' .. token)
  if shared_deadline_ms then return tonumber(shared_deadline_ms) > NOW_MS and 'ok' or 'lost' end
  local exclusive_deadline_ms = redis.call('ZSCORE', HOLDERS, 'h' .. token)
  if not exclusive_deadline_ms or tonumber(exclusive_deadline_ms) <= NOW_MS then return 'lost' end
  redis.call('ZREM', HOLDERS, 'h' .. token)
  put_holder('hs' .. token, lease_ms)
  offer_next()
  return 'ok'
end
