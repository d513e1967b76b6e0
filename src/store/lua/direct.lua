-- A request under an idempotency record that runs at once, under its lock: the record is taken before it runs, as that
-- of a job that runs, and keeps the response after it. Such a job stands in no line and counts for no cap.
--
-- KEYS[1] h of the lock   KEYS[2] j   KEYS[3] r   KEYS[4] idempotency record
-- ARGV[1] 'begin' | 'end' | 'forget'   ARGV[2] job id   ARGV[3] life of record and job, ms   ARGV[4] owner
-- or ''   ARGV[5] who holds the lock, as a member of h (begin); stored response (end) or ''
-- ARGV[6] fingerprint (end), '-' = unknown
-- Returns, to begin, '', or the job that has the record if it is another one, or 'lost' if the lock is not held and
-- nothing was taken; else 'ok', or '' if nothing of this job runs any more
-- O(log n). Each may be repeated. A begin that comes when its lock was given back takes nothing: nobody would end
-- it. Whoever began and has gone leaves what says that it runs, for its life: whether it has run is not known.
at(KEYS[1])
local verb, id, ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local whose = string.match(redis.call('GET', KEYS[4]) or '', '^(%S+)')
if verb == 'begin' then
  if whose then return whose ~= id and whose or '' end
  local held = redis.call('ZSCORE', H, ARGV[5])
  if not held or tonumber(held) <= NOW then return 'lost' end
  redis.call('SET', KEYS[4], id .. ' -', 'PX', ARGV[3])
  redis.call('HSET', KEYS[2], 'state', 'running', 'lock', NAME, 'at', int(NOW_US), 'began', int(NOW_US),
    'attempts', 1, 'max', 1, 'direct', 1, 'record', string.sub(KEYS[4], #SHARD + 3, -#NAME - 2))
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'owner', ARGV[4]) end
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  return ''
end

local v = redis.call('HMGET', KEYS[2], 'state', 'direct')
local runs = v[1] == 'running' and v[2] == '1'
if verb == 'forget' then
  if whose == id and (runs or not v[1]) then redis.call('DEL', KEYS[4]) end
  if runs then redis.call('DEL', KEYS[2]) end
elseif runs then
  -- It has run, and that is written down also without room: see renew.lua.
  redis.call('HDEL', KEYS[2], '')
  redis.call('HSET', KEYS[2], 'state', 'done', 'ended', int(NOW_US))
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[3])
  -- Or it has vanished meanwhile: a retry is to find it all the same.
  if not whose or whose == id then redis.call('SET', KEYS[4], id .. ' ' .. ARGV[6], 'PX', ARGV[3]) end
  file_under('done', id, ms, #ARGV[5], redis.call('HINCRBY', F, 'done', 1))
end
if not runs then return '' end
redis.call(PUBLISH, CHANNEL .. 'c', id)
return 'ok'
