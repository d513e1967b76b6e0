-- Puts a dead job back into its line, as it was seen: at the tail, with all its attempts to come. What has happened to it
-- is still told. Caps are not looked at: it was accepted once.
--
-- KEYS[1] j   ARGV[1] job id   ARGV[2] when it died, us, or 0
-- Everything else that it names carries the tag of that key, and is named after the job and its lock.
-- Returns the state the job is in afterwards, or '' for an unknown one. One whose request has gone stays dead; so does one
-- that has died again since: whoever asks means the death that he saw, and a copy of his call may come late.
-- O(log n). Repeated it does nothing more.
local id, job_key = ARGV[1], KEYS[1]
local values = redis.call('HMGET', job_key, 'state', 'lock', 'bytes', 'ended', 'owner', 'record')
if not values[1] or not values[2] then return '' end
if values[1] ~= 'dead' or (values[4] or '0') ~= ARGV[2] then return values[1] end
select_lock(string.sub(job_key, 1, -#id - 3), values[2])
local request_key = shard_key('b:' .. id)
local bytes = redis.call('EXISTS', request_key) == 1 and (tonumber(values[3]) or redis.call('STRLEN', request_key))
if not bytes then return 'dead' end
local sequence = next_sequence()
remove_from_index('dead', id)
redis.call('HSET', job_key, 'state', 'queued', 'seq', integer(sequence), 'attempts', 0, 'reason', '', 'bytes', bytes)
-- What vanished with its facts: of one that was lost nothing else is known, so it runs once, and as of now.
redis.call('HSETNX', job_key, 'at', integer(NOW_US))
redis.call('HSETNX', job_key, 'max', '1')
-- Its deadline was that of the first time.
redis.call('HDEL', job_key, 'run', 'ended', 'exp')
redis.call('PERSIST', job_key)
redis.call('PERSIST', request_key)
redis.call('PERSIST', shard_key('t:' .. id))
for record_name in string.gmatch(values[6] or '', '(%S+) %d+') do
  local record_key = shard_key('i:' .. record_name .. ':' .. LOCK_NAME)
  if string.match(redis.call('GET', record_key) or '', '^%S+') == id then
    extend_record(record_key, math.max(redis.call('PTTL', record_key), PENDING_RECORD_TTL_MS), values[5] or '')
  end
end
redis.call('HINCRBY', SHARD_META, 'jobs', '1')
redis.call('HINCRBY', SHARD_META, 'bytes', bytes)
count_for_owner(values[5], id, bytes)
join_queue(id, sequence, bytes)
redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
return 'queued'
