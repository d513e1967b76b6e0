-- Forgets a job that has ended, with all that is kept of it.
--
-- KEYS[1] j   KEYS[2] b   KEYS[3] r   KEYS[4] done   KEYS[5] dead   KEYS[6] f   ARGV[1] job id
-- Returns 1 | 0 there is none that has ended
-- O(log n). Repeated, it finds nothing.
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'queued' or state == 'running' then return 0 end
for i, index in ipairs({'done', 'dead'}) do
  if redis.call('ZREM', KEYS[3 + i], ARGV[1]) == 1 then redis.call('HINCRBY', KEYS[6], index .. '_out', 1) end
end
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3]) > 0 and 1 or 0
