-- Everything that is told of one job.
--
-- KEYS[1] j   KEYS[2] r   KEYS[3] watch   ARGV[1] job id
-- Returns {} for an unknown one, or what view.lua says, then 1 if its shard has a worker, then its stored response,
-- nil where that has vanished, or '', then, of a call, the end that it tells of (jobs.lua) or ''
-- O(log n). Reads only; the response is read where there is one.
local v = view(KEYS[1], ARGV[1])
if not v then return {} end
v[17] = watched(KEYS[3])
v[18] = ''
if v[1] == 'done' then v[18] = redis.call('GET', KEYS[2]) end
-- The locks of calls are of this kind (key.rs).
v[19] = string.sub(v[5], 1, 3) == 'cb:' and redis.call('HGET', KEYS[1], 'end') or ''
return v
