-- Maintains the job and the idempotency record of a direct run: a request that runs at once under
-- its lock, at most once for its idempotency key.
--
-- The idempotency record is taken before the request runs, and leads to its response afterwards.
-- The job joins no queue, and the limits of waiting jobs do not count it.
--
-- Input:
--   KEYS[1]   holders of the lock (ZSET)
--   KEYS[2]   job record (HASH)
--   KEYS[3]   response of the job (STRING)
--   KEYS[4]   idempotency record (STRING)
--   ARGV[1]   verb: 'begin', 'renew', 'end', 'mark_dead' or 'discard'
--   ARGV[2]   job id
--   ARGV[3]   retention of the job and its idempotency record, ms
--   ARGV[4]   owner, or ''
--   ARGV[5]   begin: member of KEYS[1] that holds the lock; end: response; mark_dead: reason;
--             else ''
--   ARGV[6]   end: fingerprint of the request; '-' if it is unknown
--   ARGV[7]   lease of the run, ms
--   ARGV[8]   begin: '1' if the request may run again after a crash
--   ARGV[9]   end, mark_dead: bytes that the shard keeps at most of done jobs, and of dead ones
--   ARGV[10]  begin: most idempotency records of this owner in the shard
-- Output of 'begin':
--   ''                       the run has begun
--   '<job id>'               another job has the idempotency record
--   'lost'                   the lock is not held, and nothing was taken
--   'too_many_records <ms>'  the owner has ARGV[10] idempotency records; ms until the first of them
--                            ends
-- Output of the other verbs: 'ok', or '' if the job is not running.
-- Complexity: O(log n).
-- Repeatable: a second copy of 'end', 'mark_dead' or 'discard' changes nothing, and returns ''.
-- A 'begin' that arrives after the release of its lock takes nothing, since no call would end it.
-- The run has a lease of its own, since its response may still stream when the lock is free again.
-- Caller gone: a run that is not renewed in time has crashed. The next call that finds its
-- idempotency record ends the job as dead, or deletes job and record if the request may run again.
select_lock_by_key(KEYS[1])
local verb, id, retention_ms, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[7])
local record_job = string.match(redis.call('GET', KEYS[4]) or '', '^(%S+)')
if verb == 'begin' then
  if record_job == id then return '' end
  if record_job and not release_crashed_record(KEYS[4], record_job) then return record_job end
  local deadline_ms = redis.call('ZSCORE', HOLDERS, ARGV[5])
  if not deadline_ms or tonumber(deadline_ms) <= NOW_MS then return 'lost' end
  local wait_ms = ms_until_record_slot(ARGV[4], tonumber(ARGV[10]))
  if wait_ms then return 'too_many_records ' .. integer(wait_ms) end
  local ttl_ms = math.max(retention_ms, lease_ms)
  put_record(KEYS[4], id .. ' -', ttl_ms, ARGV[4])
  redis.call('HSET', KEYS[2], 'state', 'running', 'lock', LOCK_NAME, 'at', integer(NOW_US),
    'began', integer(NOW_US), 'attempts', 1, 'max', 1, 'direct', 1,
    'til', integer(NOW_MS + lease_ms),
    'record', string.sub(KEYS[4], #SHARD_PREFIX + 3, -#LOCK_NAME - 2))
  if ARGV[8] == '1' then redis.call('HSET', KEYS[2], 'again', 1) end
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'owner', ARGV[4]) end
  redis.call('PEXPIRE', KEYS[2], integer(ttl_ms))
  return ''
end

local values = redis.call('HMGET', KEYS[2], 'state', 'direct')
local is_running = values[1] == 'running' and values[2] == '1'
-- A verb that first deletes the field '' also runs at `maxmemory`: see renew.lua.
if verb == 'renew' and is_running then
  redis.call('HDEL', KEYS[2], '')
  redis.call('HSET', KEYS[2], 'til', integer(NOW_MS + lease_ms))
  -- The retention may be shorter than the run.
  extend_ttl(KEYS[2], lease_ms)
  if record_job == id and redis.call('PTTL', KEYS[4]) < lease_ms then
    extend_record(KEYS[4], lease_ms, ARGV[4])
  end
  return 'ok'
elseif verb == 'mark_dead' and is_running then
  redis.call('HDEL', KEYS[2], '')
  redis.call('HSET', SHARD_META, 'keep', ARGV[9])
  end_direct_run(KEYS[4], id, ARGV[5], retention_ms)
  return 'ok'
elseif verb == 'discard' then
  if record_job == id and (is_running or not values[1]) then drop_record(KEYS[4], ARGV[4]) end
  if is_running then redis.call('DEL', KEYS[2]) end
elseif verb == 'end' and is_running then
  redis.call('HDEL', KEYS[2], '', 'til')
  redis.call('HSET', KEYS[2], 'state', 'done', 'ended', integer(NOW_US))
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[3])
  -- An idempotency record that has vanished is written again, so that a retry finds the response.
  if not record_job or record_job == id then
    put_record(KEYS[4], id .. ' ' .. ARGV[6], retention_ms, ARGV[4])
  end
  redis.call('HSET', SHARD_META, 'keep', ARGV[9])
  add_to_index_and_count('done', id, retention_ms, #ARGV[5],
    redis.call('HINCRBY', SHARD_META, 'done', 1), ARGV[4])
end
if not is_running then return '' end
redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
return 'ok'
