-- What can be told of a job, for read_job.lua, list_ended_jobs.lua and list_pending_jobs.lua, which it stands before. Reads only.
local time = redis.call('TIME')
local NOW_US = tonumber(time[1]) * 1000000 + tonumber(time[2])
local NOW_MS = math.floor(NOW_US / 1000)

-- Whether a worker watches the shard, or is about to, as in enqueue_batch.lua: 1 or 0.
local function shard_has_worker(watch_key)
  local deadline_ms = string.match(redis.call('GET', watch_key) or '', '^(%d+):')
  return deadline_ms and tonumber(deadline_ms) > NOW_MS and 1 or 0
end

-- {state, attempts, reason, owner, lock, bytes, at, began, ended, crashes, busy, history, by, position or 0, ms until
-- it may run or -1, 1 = a tombstone}, by the name of j; nil for an unknown job.
local function read_job_view(job_key, id)
  local fields = redis.call('HMGET', job_key, 'state', 'attempts', 'reason', 'owner', 'lock', 'bytes', 'at', 'began', 'ended',
    'crashes', 'busy', 'runs', 'by', 'gone')
  if not fields[1] then return nil end
  for i = 1, 13 do fields[i] = fields[i] or '' end
  fields[14], fields[15], fields[16] = 0, -1, fields[14] and 1 or 0
  if fields[1] ~= 'queued' and fields[1] ~= 'running' then return fields end
  local shard_prefix = string.sub(job_key, 1, -#id - 3)
  local rank = redis.call('ZRANK', shard_prefix .. 'g:' .. fields[5], id)
  if rank then fields[14] = rank + 1 end
  if fields[1] == 'running' then return fields end
  local runnable_ms
  if rank then
    runnable_ms = string.match((redis.call('HGET', shard_prefix .. 'l:' .. fields[5], 'back') or '') .. ' ', '(%d+) ' .. id .. ' ')
  else
    runnable_ms = redis.call('ZSCORE', shard_prefix .. 'late', id)
  end
  if runnable_ms and tonumber(runnable_ms) > NOW_MS then fields[15] = tonumber(runnable_ms) - NOW_MS end
  return fields
end
