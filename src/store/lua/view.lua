-- What can be told of a job, for job.lua, list.lua and pending.lua, which it stands before. Reads only.
local time = redis.call('TIME')
local NOW_US = tonumber(time[1]) * 1000000 + tonumber(time[2])
local NOW = math.floor(NOW_US / 1000)

-- Whether a worker watches the shard, or is about to, as in enqueue.lua: 1 or 0.
local function watched(watch)
  local til = string.match(redis.call('GET', watch) or '', '^(%d+):')
  return til and tonumber(til) > NOW and 1 or 0
end

-- {state, attempts, reason, owner, lock, bytes, at, began, ended, crashes, busy, history, by, position or 0, ms until
-- it may run or -1, 1 = a tombstone}, by the name of j; nil for an unknown job.
local function view(j, id)
  local v = redis.call('HMGET', j, 'state', 'attempts', 'reason', 'owner', 'lock', 'bytes', 'at', 'began', 'ended',
    'crashes', 'busy', 'runs', 'by', 'gone')
  if not v[1] then return nil end
  for i = 1, 13 do v[i] = v[i] or '' end
  v[14], v[15], v[16] = 0, -1, v[14] and 1 or 0
  if v[1] ~= 'queued' and v[1] ~= 'running' then return v end
  local shard = string.sub(j, 1, -#id - 3)
  local rank = redis.call('ZRANK', shard .. 'g:' .. v[5], id)
  if rank then v[14] = rank + 1 end
  if v[1] == 'running' then return v end
  local at
  if rank then
    at = string.match((redis.call('HGET', shard .. 'l:' .. v[5], 'back') or '') .. ' ', '(%d+) ' .. id .. ' ')
  else
    at = redis.call('ZSCORE', shard .. 'late', id)
  end
  if at and tonumber(at) > NOW then v[15] = tonumber(at) - NOW end
  return v
end
