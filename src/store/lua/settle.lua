-- Ends a run: done with its response, dead with a reason, or back in its place to run again.
--
-- KEYS[1..7] the line (line.lua)   KEYS[8] j   KEYS[9] b   KEYS[10] lease   KEYS[11] index of ended
-- jobs (done or dead)   KEYS[12] r
-- ARGV[1] job id   ARGV[2] run token   ARGV[3] 'done' | 'dead' | 'retry' |
-- 'back'   ARGV[4] ms: retention (done, dead) or delay (retry, back)   ARGV[5] reason or ''
-- ARGV[6] stored response (done) or ''
-- Returns 'ok' | 'lost' the run is not the job's any more: nothing was written
-- 'back' gives the attempt back (a drain, no route, a nested lock that was busy).
-- O(log n). Needs the job's run token and the lock under it. Repeated with the same token: 'ok'.
at(0)
local id, me, verb, ms, reason = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local v = redis.call('HMGET', KEYS[8], 'state', 'run', 'bytes', 'attempts')
if v[2] ~= me then return 'lost' end
if v[1] ~= 'running' then return 'ok' end
local deadline = redis.call('ZSCORE', H, 'h' .. me)
if not deadline or tonumber(deadline) <= NOW then return 'lost' end

redis.call('ZREM', H, 'h' .. me)
redis.call('ZREM', KEYS[10], id)
if verb == 'done' or verb == 'dead' then
  redis.call('HSET', KEYS[8], 'state', verb, 'reason', reason, 'ended', int(NOW_US))
  redis.call('PEXPIRE', KEYS[8], int(ms))
  if verb == 'done' then
    redis.call('SET', KEYS[12], ARGV[6], 'PX', int(ms))
    redis.call('DEL', KEYS[9])
  else
    redis.call('PEXPIRE', KEYS[9], int(ms))
  end
  end_job(id, tonumber(v[3] or '0'))
  file_under(KEYS[11], id, ms)
else
  local attempts = tonumber(v[4])
  if verb == 'back' then attempts = attempts - 1 end
  redis.call('HSET', KEYS[8], 'state', 'queued', 'attempts', attempts, 'reason', reason)
  redis.call('HSET', L, 'back', int(NOW + ms))
  redis.call('PERSIST', L)
  redis.call('ZADD', DUE, int(NOW + ms), NAME)
end
move_on()
redis.call('PUBLISH', CHANNEL .. 'e', id)
return 'ok'
