-- Redrives a dead job: puts it back at the tail of its wait queue, with all its attempts. Its
-- history stays. Limits are not checked, because the job was accepted once.
--
-- Input:
--   KEYS[1]  job record, j (HASH)
--   ARGV[1]  job id
--   ARGV[2]  time of the end that the caller has seen, us, or 0
-- The names of all other keys are built from that of the job and from its lock; they share the hash
-- tag.
-- Output: the state of the job after the call, or '' if the job is unknown. Without its request,
-- the job stays 'dead'.
-- Complexity: O(log n).
-- Idempotent. A late copy does not redrive a job that has died again since: its caller asked about
-- the earlier end.
local id, job_key = ARGV[1], KEYS[1]
local values = redis.call('HMGET', job_key, 'state', 'lock', 'bytes', 'ended', 'owner', 'record')
if not values[1] or not values[2] then return '' end
if values[1] ~= 'dead' or (values[4] or '0') ~= ARGV[2] then return values[1] end
select_lock(string.sub(job_key, 1, -#id - 3), values[2])
local request_key = shard_key('b:' .. id)
local bytes = redis.call('EXISTS', request_key) == 1
  and (tonumber(values[3]) or redis.call('STRLEN', request_key))
if not bytes then return 'dead' end
local sequence = next_sequence()
remove_from_index('dead', id)
redis.call('HSET', job_key, 'state', 'queued', 'seq', integer(sequence), 'attempts', 0,
  'reason', '', 'bytes', bytes)
-- If the job's key had vanished, these fields are missing: the job counts as accepted now, and runs
-- once.
redis.call('HSETNX', job_key, 'at', integer(NOW_US))
redis.call('HSETNX', job_key, 'max', '1')
-- The deadline was that of the first acceptance.
redis.call('HDEL', job_key, 'run', 'ended', 'exp')
redis.call('PERSIST', job_key)
redis.call('PERSIST', request_key)
redis.call('PERSIST', shard_key('t:' .. id))
for record_name in string.gmatch(values[6] or '', '(%S+) %d+') do
  local record_key = shard_key('i:' .. record_name .. ':' .. LOCK_NAME)
  if string.match(redis.call('GET', record_key) or '', '^%S+') == id then
    extend_record(
      record_key,
      math.max(redis.call('PTTL', record_key), PENDING_RECORD_TTL_MS),
      values[5] or ''
    )
  end
end
redis.call('HINCRBY', SHARD_META, 'jobs', '1')
redis.call('HINCRBY', SHARD_META, 'bytes', bytes)
count_for_owner(values[5], id, bytes)
join_queue(id, sequence, bytes)
redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
return 'queued'
