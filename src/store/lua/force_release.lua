-- Takes a lock from its holders, for an operator. wait_queue.lua precedes this file.
--
-- Input:
--   KEYS[1]  holders of the lock (ZSET)
-- Output: number of holders that were removed, at most SCAN_LIMIT; 1 if others may be left, or 0.
-- Complexity: O(log n).
-- Not resent: a copy would take the lock from the next holder.
-- Caller gone: the lock is free, and offered to its queue. If there were more than SCAN_LIMIT
-- holders, the others keep it, and it is offered when they release it.
-- h gone: the lock is free already.
-- The next grant has a fence above all of the removed holders, with those reserved for handovers.
-- The holders are told, and find out at the next renewal at the latest. An offer stays: it lapses
-- in a moment, and its waiter has left the queue.
select_lock_by_key(KEYS[1])
expire_holders()
-- From the latest deadline on: offers, which end soon, are behind the holders.
local members, released = redis.call('ZREVRANGE', HOLDERS, '0', SCAN_LIMIT - 1), 0
for _, member in ipairs(members) do
  local node = string.match(member, '^h[sp]?%x+:(%x+)$')
  if node then
    redis.call('ZREM', HOLDERS, member)
    released = released + 1
    redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node, 'x ' .. LOCK_NAME)
  end
end
local has_more = redis.call('ZCARD', HOLDERS) > #members - released
-- Not before the last call: it would take the lock from those that it is offered to.
if released > 0 and not has_more then offer_next() end
return {released, has_more and 1 or 0}
