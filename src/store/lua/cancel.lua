-- Cancels a job that waits. One that runs, or has ended, is left as it is.
--
-- KEYS[1..7] the line (line.lua)   KEYS[8] j   KEYS[9] b
-- ARGV[1] job id   ARGV[2] retention, ms
-- Returns the state the job is in afterwards, or '' for an unknown one
-- O(log n). Cancelling twice is the same as once. A run whose worker died counts as running until a
-- worker's visit has looked at it.
at(0)
local id = ARGV[1]
local v = redis.call('HMGET', KEYS[8], 'state', 'bytes')
if not v[1] then return '' end
if v[1] ~= 'queued' then return v[1] end
redis.call('HSET', KEYS[8], 'state', 'cancelled', 'ended', int(NOW_US))
redis.call('PEXPIRE', KEYS[8], ARGV[2])
redis.call('DEL', KEYS[9])
redis.call('ZREM', own('exp'), id)
local first = finish(id, tonumber(v[2] or '0'), 'done', tonumber(ARGV[2]), 'cancelled')
redis.call('ZREM', H, 'j' .. id)
-- It may have been its backoff that the lock is due at the end of.
if #first > 0 then redis.call('ZADD', DUE, int(NOW), NAME) end
move_on()
tell_changed()
return 'cancelled'
