-- Reads who holds a lock, who waits for it, and which jobs run under it. wait_queue.lua precedes
-- this file.
--
-- Input:
--   KEYS[1]  holders of the lock (ZSET)
-- Output: {entries in the queue, jobs, members of h, entries read, then of each member of h: the
--   member and the ms until its deadline; then of each entry: the entry and the us since its
--   sequence; then the ids of jobs}. At most SCAN_LIMIT of each kind, without expired ones.
-- Complexity: O(log n).
-- It only reads.
select_lock_by_key(KEYS[1])
local holders = redis.call('ZRANGE', HOLDERS, '0', SCAN_LIMIT - 1, 'WITHSCORES')
local waiters = redis.call('ZRANGE', WAITERS, '0', SCAN_LIMIT - 1, 'WITHSCORES')
local reply = {redis.call('ZCARD', WAITERS), redis.call('ZCARD', JOBS), 0, 0}
for i = 1, #holders, 2 do
  local remaining_ms = tonumber(holders[i + 1]) - NOW_MS
  if remaining_ms > 0 then
    reply[3] = reply[3] + 1
    reply[#reply + 1], reply[#reply + 2] = holders[i], integer(remaining_ms)
  end
end
for i = 1, #waiters, 2 do
  local deadline_ms = string.match(waiters[i], '^(%d+):')
  if deadline_ms and tonumber(deadline_ms) > NOW_MS then
    reply[4] = reply[4] + 1
    reply[#reply + 1] = waiters[i]
    reply[#reply + 1] = integer(math.max(NOW_US - tonumber(waiters[i + 1]), 0))
  end
end
for _, id in ipairs(redis.call('ZRANGE', JOBS, '0', SCAN_LIMIT - 1)) do
  reply[#reply + 1] = id
end
return reply
