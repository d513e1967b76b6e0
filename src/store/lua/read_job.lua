-- Everything that is told of one job.
--
-- KEYS[1] j   KEYS[2] r   KEYS[3] watch   ARGV[1] job id
-- Returns {} for an unknown one, or what job_view.lua says, then 1 if its shard has a worker, then its stored response,
-- nil where that has vanished, or '', then, of a call, the end that it tells of (job_common.lua) or ''
-- O(log n). Reads only; the response is read where there is one.
local fields = read_job_view(KEYS[1], ARGV[1])
if not fields then return {} end
fields[17] = shard_has_worker(KEYS[3])
fields[18] = ''
if fields[1] == 'done' then fields[18] = redis.call('GET', KEYS[2]) end
-- The locks of calls are of this kind (key.rs).
fields[19] = string.sub(fields[5], 1, 3) == 'cb:' and redis.call('HGET', KEYS[1], 'end') or ''
return fields
