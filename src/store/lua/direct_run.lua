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
select_lock_by_key(KEYS[1])
local verb, id, retention_ms, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[7])
local record_job = string.match(redis.call('GET', KEYS[4]) or '', '^(%S+)')
if verb == 'begin' then
  if record_job == id then return '' end
  if record_job and not release_crashed_record(KEYS[4], record_job) then return record_job end
  local deadline_ms = redis.call('ZSCORE', HOLDERS, ARGV[5])
  if not deadline_ms or tonumber(deadline_ms) <= NOW_MS then return 'lost' end
  local wait_ms = ms_until_record_slot(ARGV[4], tonumber(ARGV[10]))
  if wait_ms then return 'keys ' .. integer(wait_ms) end
  local ttl_ms = math.max(retention_ms, lease_ms)
  put_record(KEYS[4], id .. ' -', ttl_ms, ARGV[4])
  redis.call('HSET', KEYS[2], 'state', 'running', 'lock', LOCK_NAME, 'at', integer(NOW_US), 'began', integer(NOW_US),
    'attempts', 1, 'max', 1, 'direct', 1, 'til', integer(NOW_MS + lease_ms),
    'record', string.sub(KEYS[4], #SHARD_PREFIX + 3, -#LOCK_NAME - 2))
  if ARGV[8] == '1' then redis.call('HSET', KEYS[2], 'again', 1) end
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'owner', ARGV[4]) end
  redis.call('PEXPIRE', KEYS[2], integer(ttl_ms))
  return ''
end

local values = redis.call('HMGET', KEYS[2], 'state', 'direct')
local is_running = values[1] == 'running' and values[2] == '1'
if verb == 'renew' and is_running then
  redis.call('HDEL', KEYS[2], '')
  redis.call('HSET', KEYS[2], 'til', integer(NOW_MS + lease_ms))
  -- Its life may be shorter than its run.
  extend_ttl(KEYS[2], lease_ms)
  if record_job == id and redis.call('PTTL', KEYS[4]) < lease_ms then extend_record(KEYS[4], lease_ms, ARGV[4]) end
  return 'ok'
elseif verb == 'bury' and is_running then
  redis.call('HDEL', KEYS[2], '')
  redis.call('HSET', SHARD_META, 'keep', ARGV[9])
  end_direct_run(KEYS[4], id, ARGV[5], retention_ms)
  return 'ok'
elseif verb == 'forget' then
  if record_job == id and (is_running or not values[1]) then drop_record(KEYS[4], ARGV[4]) end
  if is_running then redis.call('DEL', KEYS[2]) end
elseif verb == 'end' and is_running then
  -- It has run, and that is written down also without room: see renew.lua.
  redis.call('HDEL', KEYS[2], '', 'til')
  redis.call('HSET', KEYS[2], 'state', 'done', 'ended', integer(NOW_US))
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[3])
  -- Or it has vanished meanwhile: a retry is to find it all the same.
  if not record_job or record_job == id then put_record(KEYS[4], id .. ' ' .. ARGV[6], retention_ms, ARGV[4]) end
  redis.call('HSET', SHARD_META, 'keep', ARGV[9])
  add_to_index_and_count('done', id, retention_ms, #ARGV[5], redis.call('HINCRBY', SHARD_META, 'done', 1), ARGV[4])
end
if not is_running then return '' end
redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
return 'ok'
