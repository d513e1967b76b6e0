-- Returns the view of one job, with its response.
--
-- Input:
--   KEYS[1]  job record (HASH)
--   KEYS[2]  response of the job (STRING)
--   KEYS[3]  watch of the shard (STRING)
--   ARGV[1]  job id
-- Output: {} for an unknown job, else an array:
--   1 to 17  the view, see job_view.lua
--   18       1 if the shard has a worker, or 0
--   19       response of a done job, nil if it has vanished; '' for any other job
--   20       of a webhook job: the end that it reports (field `end`); else ''
-- Complexity: O(log n).
-- It only reads.
local fields = read_job_view(KEYS[1], ARGV[1])
if not fields then return {} end
fields[18] = shard_has_worker(KEYS[3])
fields[19] = ''
if fields[1] == 'done' then fields[19] = redis.call('GET', KEYS[2]) end
-- Only the locks of webhook jobs have such a name (key.rs).
fields[20] = string.sub(fields[5], 1, 3) == 'cb:' and redis.call('HGET', KEYS[1], 'end') or ''
return fields
