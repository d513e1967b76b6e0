-- Stores a deferred request behind the lock it found busy. The lock is looked at again here, in the
-- same step, so nothing can fall between "busy" and "queued".
--
-- KEYS[1..7] the line (line.lua)   KEYS[8] j   KEYS[9] b   KEYS[10] idempotency record
-- ARGV[1] job id   ARGV[2] envelope   ARGV[3] 1 = may run again after a crash
-- ARGV[4] most attempts   ARGV[5] fingerprint of the request, or '' without Idempotency-Key
-- ARGV[6] life of the idempotency record, ms   ARGV[7] most jobs and ARGV[8] most bytes of this
-- resource   ARGV[9] most jobs and ARGV[10] most bytes of this shard   ARGV[11] owner (tenant) or ''
-- Returns {'stored', position} | {'known', job id} accepted before, the same request
--       | {'mismatch'} the key was used for another request | {'full'} over a cap, nothing stored
-- O(log n). Idempotent by job id. The job has no TTL while it waits: g is its index, due walks g.
at(0)
local id, envelope, print = ARGV[1], ARGV[2], ARGV[5]
local bytes = #envelope
if redis.call('EXISTS', KEYS[8]) == 1 then
  return {'stored', (redis.call('ZRANK', G, id) or 0) + 1}
end
if print ~= '' then
  local record = redis.call('GET', KEYS[10])
  if record then
    local known, old = string.match(record, '^(%S+) (%S+)$')
    if old == print then return {'known', known} end
    return {'mismatch'}
  end
end
local facts = redis.call('HMGET', F, 'jobs', 'bytes')
if redis.call('ZCARD', G) >= tonumber(ARGV[7])
  or tonumber(redis.call('HGET', L, 'bytes') or '0') + bytes > tonumber(ARGV[8])
  or tonumber(facts[1] or '0') >= tonumber(ARGV[9])
  or tonumber(facts[2] or '0') + bytes > tonumber(ARGV[10]) then
  return {'full'}
end
local seq = next_seq()
redis.call('HSET', KEYS[8], 'state', 'queued', 'lock', NAME, 'attempts', '0', 'again', ARGV[3],
  'max', ARGV[4], 'bytes', bytes, 'at', int(NOW_US), 'owner', ARGV[11])
redis.call('SET', KEYS[9], envelope)
redis.call('ZADD', G, int(seq), id)
redis.call('HINCRBY', F, 'jobs', 1)
redis.call('HINCRBY', F, 'bytes', bytes)
redis.call('HINCRBY', L, 'bytes', bytes)
redis.call('PERSIST', L)
if print ~= '' then redis.call('SET', KEYS[10], id .. ' ' .. print, 'PX', ARGV[6]) end
local last = held_until()
if last then
  tell_holders(seq)
  if not redis.call('ZSCORE', DUE, NAME) then arm(last) end
else
  move_on()
end
return {'stored', redis.call('ZRANK', G, id) + 1}
