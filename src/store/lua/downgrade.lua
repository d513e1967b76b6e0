-- Makes an exclusive hold a shared one, and lets in the readers at the head of the line.
--
-- A step of lock_batch.lua. KEYS the line (wait_queue.lua)   me: '<nonce>:<node>'   lease, ms
-- Returns 'ok' | 'lost' it was not held any more; nothing was touched
-- O(log n). Run twice, the second run finds it done.
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
