-- A request under an idempotency record that runs at once, under its lock: the record is taken before it runs, as that
-- of a job that runs, and keeps the response after it. Such a job stands in no line and counts for no cap.
--
-- KEYS[1] h of the lock   KEYS[2] j   KEYS[3] r   KEYS[4] idempotency record
-- ARGV[1] 'begin' | 'renew' | 'end' | 'bury' | 'forget'   ARGV[2] job id   ARGV[3] life of record and job, ms
-- ARGV[4] owner or ''   ARGV[5] who holds the lock, as a member of h (begin); stored response (end); reason (bury); or ''
-- ARGV[6] fingerprint (end), '-' = unknown   ARGV[7] lease of the run, ms   ARGV[8] '1' = may run again (begin)
-- ARGV[9] most bytes that the shard keeps of done jobs, and of dead ones   ARGV[10] most records of this owner in the shard
-- Returns, to begin, '', or the job that has the record if it is another one, or 'lost' if the lock is not held and
-- nothing was taken, or 'keys <ms>' if the owner has as many records as it may, until the first of them ends;
-- else 'ok', or '' if nothing of this job runs any more
-- O(log n). Each may be repeated. A begin that comes when its lock was given back takes nothing: nobody would end
-- it. The run has a lease of its own, since its answer may stream when the lock is free again. A run that is not
-- renewed has lost its process: the next call that meets its record makes it dead, or forgets it if it may run again.
at(KEYS[1])
local verb, id, ms, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[7])
local whose = string.match(redis.call('GET', KEYS[4]) or '', '^(%S+)')
if verb == 'begin' then
  if whose == id then return '' end
  if whose and not settle_crashed(KEYS[4], whose) then return whose end
  local held = redis.call('ZSCORE', H, ARGV[5])
  if not held or tonumber(held) <= NOW then return 'lost' end
  local full = records_full(ARGV[4], tonumber(ARGV[10]))
  if full then return 'keys ' .. int(full) end
  local life = math.max(ms, lease)
  put_record(KEYS[4], id .. ' -', life, ARGV[4])
  redis.call('HSET', KEYS[2], 'state', 'running', 'lock', NAME, 'at', int(NOW_US), 'began', int(NOW_US),
    'attempts', 1, 'max', 1, 'direct', 1, 'til', int(NOW + lease),
    'record', string.sub(KEYS[4], #SHARD + 3, -#NAME - 2))
  if ARGV[8] == '1' then redis.call('HSET', KEYS[2], 'again', 1) end
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'owner', ARGV[4]) end
  redis.call('PEXPIRE', KEYS[2], int(life))
  return ''
end

local v = redis.call('HMGET', KEYS[2], 'state', 'direct')
local runs = v[1] == 'running' and v[2] == '1'
if verb == 'renew' and runs then
  redis.call('HDEL', KEYS[2], '')
  redis.call('HSET', KEYS[2], 'til', int(NOW + lease))
  -- Its life may be shorter than its run.
  keep_ttl(KEYS[2], lease)
  if whose == id and redis.call('PTTL', KEYS[4]) < lease then extend_record(KEYS[4], lease, ARGV[4]) end
  return 'ok'
elseif verb == 'bury' and runs then
  redis.call('HDEL', KEYS[2], '')
  redis.call('HSET', F, 'keep', ARGV[9])
  bury_direct(KEYS[4], id, ARGV[5], ms)
  return 'ok'
elseif verb == 'forget' then
  if whose == id and (runs or not v[1]) then drop_record(KEYS[4], ARGV[4]) end
  if runs then redis.call('DEL', KEYS[2]) end
elseif verb == 'end' and runs then
  -- It has run, and that is written down also without room: see renew.lua.
  redis.call('HDEL', KEYS[2], '', 'til')
  redis.call('HSET', KEYS[2], 'state', 'done', 'ended', int(NOW_US))
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[3])
  -- Or it has vanished meanwhile: a retry is to find it all the same.
  if not whose or whose == id then put_record(KEYS[4], id .. ' ' .. ARGV[6], ms, ARGV[4]) end
  redis.call('HSET', F, 'keep', ARGV[9])
  file_under('done', id, ms, #ARGV[5], redis.call('HINCRBY', F, 'done', 1), ARGV[4])
end
if not runs then return '' end
redis.call(PUBLISH, CHANNEL .. 'c', id)
return 'ok'
