-- Makes an exclusive hold a shared one, and lets in the readers at the head of the line.
--
-- A step of calls.lua. KEYS the line (line.lua)   me: '<nonce>:<node>'   lease, ms
-- Returns 'ok' | 'lost' it was not held any more; nothing was touched
-- O(log n). Run twice, the second run finds it done.
local function downgrade(me, _, lease)
  local shared = redis.call('ZSCORE', H, 'hs' .. me)
  if shared then return tonumber(shared) > NOW and 'ok' or 'lost' end
  local held = redis.call('ZSCORE', H, 'h' .. me)
  if not held or tonumber(held) <= NOW then return 'lost' end
  redis.call('ZREM', H, 'h' .. me)
  put('hs' .. me, lease)
  move_on()
  return 'ok'
end
