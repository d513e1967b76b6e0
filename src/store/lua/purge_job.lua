-- Purges a job that has ended, as it was seen: a tombstone is left of it, to which its idempotency records lead. Without
-- them a retry would run a second time.
--
-- KEYS[1] j   KEYS[2] b   KEYS[3] r   KEYS[4] t   KEYS[5] done   KEYS[6] dead   KEYS[7] f   ARGV[1] job id
-- ARGV[2] when it ended, us, or 0
-- What is counted of the indexes carries the tag of these keys.
-- Returns 1 | 0 there is none that has ended then: a copy of this call may come when the job was put back, and has ended
-- again
-- O(log n). Repeated, it finds nothing.
local id = ARGV[1]
local values = redis.call('HMGET', KEYS[1], 'state', 'lock', 'gone', 'ended')
if values[1] == 'queued' or values[1] == 'running' or values[3] or (values[4] or '0') ~= ARGV[2] then return 0 end
-- One whose facts have vanished may stand in a line, with its request, which is counted: a visit sees to that. Only what
-- an index knows has ended.
if not values[1] and not redis.call('ZSCORE', KEYS[5], id) and not redis.call('ZSCORE', KEYS[6], id) then return 0 end
select_lock(string.sub(KEYS[1], 1, -#id - 3), values[2] or '')
remove_from_index('done', id)
remove_from_index('dead', id)
return leave_tombstone(id) > 0 and 1 or 0
