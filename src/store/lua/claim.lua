-- A worker's visit to a lock that has jobs: takes the lock for the first job and starts its run.
--
-- KEYS[1..7] the line (line.lua)   KEYS[8] j and KEYS[9] b of ARGV[1]   KEYS[10] lease   KEYS[11] dead
-- ARGV[1] job id the worker believes is first   ARGV[2] run token
-- '<nonce>:<node>'   ARGV[3] lease, ms   ARGV[4] retention of dead jobs, ms
-- Returns {'claimed', fence, attempt, envelope, accepted at us}
--       | {'busy', ms} held by somebody else until then | {'later', ms} in backoff
--       | {'moved', id} another job is first now | {'empty'} no jobs here | {'dead', id} a crash ended it
-- O(log n). The owner while it runs is the run token, never the job's id: a second claim is busy, a
-- repeated one with the same token is the same claim, and once its run is over it is refused. A job
-- stays in g while it runs.
at(0)
local id, me, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local first = redis.call('ZRANGE', G, 0, 0, 'WITHSCORES')
redis.call('HDEL', L, 'park')
if #first == 0 then
  -- Also where g itself has vanished: what was kept for it must not stay for ever.
  redis.call('ZREM', DUE, NAME)
  redis.call('HDEL', L, 'back', 'bytes')
  redis.call('PEXPIRE', L, 600000)
  return {'empty'}
end
if first[1] ~= id then return {'moved', first[1]} end

local v = redis.call('HMGET', KEYS[8], 'state', 'run', 'attempts', 'again', 'max', 'bytes', 'at')
local state, run, attempts, bytes = v[1], v[2], tonumber(v[3] or '0'), tonumber(v[6] or '0')
local last = held_until()
if state == 'running' and run == me and redis.call('ZSCORE', H, 'h' .. me) then
  return {'claimed', grant(me, 'x', lease), attempts, redis.call('GET', KEYS[9]), v[7]}
end
-- A token starts one run. It comes again, late, after that run was settled, given back or lost: nobody
-- waits for this answer, and nobody would execute another run.
if run == me then return {'busy', int(ACCEPT)} end
local back = tonumber(redis.call('HGET', L, 'back') or '0')
if back > NOW then
  redis.call('ZADD', DUE, int(back), NAME)
  move_on()
  return {'later', int(back - NOW)}
end
local offered = redis.call('ZSCORE', H, 'j' .. id)
if last and not offered then
  redis.call('ZADD', DUE, int(last), NAME)
  return {'busy', int(last - NOW)}
end
if not offered then
  local seq = live_head()
  if seq and seq < tonumber(first[2]) then
    -- A live place stands before the job: a worker's visit moves the line on for it too. A visit has to
    -- move what is due, or it would be due at once again.
    redis.call('ZADD', DUE, int(NOW + ACCEPT), NAME)
    move_on()
    return {'busy', int(ACCEPT)}
  end
end

local envelope = redis.call('GET', KEYS[9])
local reason = nil
if not state or not envelope then
  reason = 'lost'
  -- What its vanished key said is what its request still is, or nothing.
  if not v[6] and envelope then bytes = #envelope end
elseif state == 'running' and (v[4] ~= '1' or attempts >= tonumber(v[5])) then
  -- It was running and its token is gone from h: its worker died or was paused past its lease.
  reason = 'crashed, may have run'
end
if reason then
  redis.call('ZREM', H, 'j' .. id)
  redis.call('ZREM', KEYS[10], id)
  redis.call('HSET', KEYS[8], 'state', 'dead', 'reason', reason, 'ended', int(NOW_US), 'lock', NAME)
  -- Its last run may still be alive somewhere, only slow: it must learn that its verdict is void.
  redis.call('HDEL', KEYS[8], 'run')
  redis.call('PEXPIRE', KEYS[8], ARGV[4])
  redis.call('PEXPIRE', KEYS[9], ARGV[4])
  end_job(id, bytes)
  file_under(KEYS[11], id, tonumber(ARGV[4]))
  move_on()
  redis.call('PUBLISH', CHANNEL .. 'e', id)
  return {'dead', id}
end

redis.call('ZREM', H, 'j' .. id)
redis.call('HSET', KEYS[8], 'state', 'running', 'run', me, 'attempts', attempts + 1)
redis.call('HDEL', KEYS[8], 'reason')
redis.call('HDEL', L, 'back')
redis.call('ZADD', KEYS[10], int(NOW + lease), id)
redis.call('ZADD', DUE, int(NOW + lease), NAME)
local fence = grant(me, 'x', lease)
redis.call('PUBLISH', CHANNEL .. 'e', id)
return {'claimed', fence, attempts + 1, envelope, v[7]}
