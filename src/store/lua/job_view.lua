-- Prelude that reads the view of a job: its status without request and response.
--
-- Provides: NOW_US and NOW_MS (the server's time), shard_has_worker, read_job_view.
-- Included by: read_job.lua, list_ended_jobs.lua, list_pending_jobs.lua.
-- It only reads.
local time = redis.call('TIME')
local NOW_US = tonumber(time[1]) * 1000000 + tonumber(time[2])
local NOW_MS = math.floor(NOW_US / 1000)

-- Returns 1 if a worker watches the shard or is about to take it over, else 0. `has_worker` in
-- enqueue_jobs.lua has the same rule.
local function shard_has_worker(watch_key)
  local deadline_ms = string.match(redis.call('GET', watch_key) or '', '^(%d+):')
  return deadline_ms and tonumber(deadline_ms) > NOW_MS and 1 or 0
end

-- Returns the view of the job with this key and id; nil for an unknown job. The view is an array,
-- with '' for a missing text:
--   1 state       5 lock                        9 ended at, us     13 job that superseded it
--   2 attempts    6 bytes                      10 crashes          14 position in its queue, or 0
--   3 reason      7 accepted at, us            11 busy             15 ms until it may run, or -1
--   4 owner       8 start of its last run, us  12 history of runs  16 1 if it is a tombstone, or 0
--                                                                  17 method and route pattern
local function read_job_view(job_key, id)
  local fields = redis.call('HMGET', job_key, 'state', 'attempts', 'reason', 'owner', 'lock',
    'bytes', 'at', 'began', 'ended', 'crashes', 'busy', 'runs', 'by', 'gone', 'route')
  if not fields[1] then return nil end
  for i = 1, 13 do fields[i] = fields[i] or '' end
  fields[14], fields[15], fields[16], fields[17] = 0, -1, fields[14] and 1 or 0, fields[15] or ''
  if fields[1] ~= 'queued' and fields[1] ~= 'running' then return fields end
  local shard_prefix = string.sub(job_key, 1, -#id - 3)
  local rank = redis.call('ZRANK', shard_prefix .. 'g:' .. fields[5], id)
  if rank then fields[14] = rank + 1 end
  if fields[1] == 'running' then return fields end
  local runnable_ms
  if rank then
    runnable_ms = string.match(
      (redis.call('HGET', shard_prefix .. 'l:' .. fields[5], 'back') or '') .. ' ',
      '(%d+) ' .. id .. ' ')
  else
    runnable_ms = redis.call('ZSCORE', shard_prefix .. 'late', id)
  end
  if runnable_ms and tonumber(runnable_ms) > NOW_MS then
    fields[15] = tonumber(runnable_ms) - NOW_MS
  end
  return fields
end
