-- Takes a lock from its holders, for an operator. wait_queue.lua precedes this file.
--
-- Input:
--   KEYS[1]  holders of the lock (ZSET)
-- Output: nodes of the holders, of which at most SCAN_LIMIT are removed.
-- Complexity: O(log n).
-- Not resent: a copy would take the lock from the next holder.
-- Caller gone: the lock is free, and offered to its queue.
-- h gone: the lock is free already.
-- The next grant has a fence above all of the removed holders, with those reserved for handovers.
-- The holders are told, and find out at the next renewal at the latest. An offer stays: it lapses
-- in a moment, and its waiter has left the queue.
select_lock_by_key(KEYS[1])
expire_holders()
local nodes = {}
for _, member in ipairs(redis.call('ZRANGE', HOLDERS, '0', SCAN_LIMIT - 1)) do
  local node = string.match(member, '^h[sp]?%x+:(%x+)$')
  if node then
    redis.call('ZREM', HOLDERS, member)
    nodes[#nodes + 1] = node
    redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node, 'x ' .. LOCK_NAME)
  end
end
if #nodes > 0 then offer_next() end
return nodes
