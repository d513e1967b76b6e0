-- What the watcher of some shards should look at now, and when to look again. Puts jobs that were late back
-- into their line, and ends those whose deadline has passed before they ran.
--
-- KEYS one due index a shard, at most 64   ARGV[1] most names in all   ARGV[2] how many shards
-- Everything else that it names carries the tag of one of these: which jobs and locks it is about turns out here.
-- Returns per shard: {us until something comes due, 0 if more is due than could be seen to, or -1, then per
-- lock that is due its name and its first job, or ''}. Shards that come after as many names as were wanted are not
-- looked at: 0, and no names
-- O(shards * log n + (names + jobs) * log n), at most 100 late jobs and 100 deadlines in a call. A name stays due until a
-- visit (claim_job.lua) moves it; the line of a callback, which may wait for long until there is room for a visit, is due again
-- after a while, so that those behind it are seen. Repeated, it finds less to do; a caller that has gone has left nothing
-- half done.
local results, name_budget, delayed_budget, expiry_budget = {}, tonumber(ARGV[1]), SCAN_LIMIT, SCAN_LIMIT
-- Late jobs that may be looked at to count them anew.
local recount_budget = 500
-- After how many ms the line of a callback comes again.
local WEBHOOK_REVISIT_MS = 1000

-- Jobs of an index whose time has come.
local function due_entries(index, limit)
  if limit == 0 then return {} end
  return redis.call('ZRANGEBYSCORE', index, '-inf', integer(NOW_MS), 'LIMIT', '0', limit)
end

-- A late job is in time again. True if its key has vanished.
local function requeue_delayed_job(shard_prefix, id)
  local values = redis.call('HMGET', shard_prefix .. 'j:' .. id, 'state', 'lock', 'seq', 'bytes', 'exp')
  local bytes = tonumber(values[4] or '0')
  select_lock(shard_prefix, values[2] or '')
  if values[1] == 'queued' and values[2] then
    if values[5] and tonumber(values[5]) <= NOW_MS then return expire_job(id, bytes) end
    remove_delayed_job(id, bytes)
    local sequence, first = tonumber(values[3]) or next_sequence(), redis.call('ZRANGE', JOBS, '0', '0', 'WITHSCORES')
    -- An offer to the job that was first is nobody's yet.
    if #first > 0 and sequence < tonumber(first[2]) then redis.call('ZREM', HOLDERS, 'j' .. first[1]) end
    return join_queue(id, sequence, bytes)
  end
  if values[1] and (values[2] or values[1] ~= 'queued') then return remove_delayed_job(id, bytes) and nil end
  -- Its key has vanished, or what it said of that: nobody knows where it belongs.
  redis.call('ZREM', shard_key('late'), id)
  local request_key = shard_key('b:' .. id)
  uncount_job(redis.call('STRLEN', request_key) + redis.call('STRLEN', shard_key('t:' .. id)))
  redis.call('DEL', shard_key('j:' .. id), request_key, shard_key('t:' .. id))
  return true
end

-- Which lock a vanished job was counted for is not known: all that are late are counted anew. If they are too many for
-- one step, the count begins anew: a cap that is too wide for a while is better than one that refuses for nothing.
local function recount_delayed_jobs(shard_prefix)
  select_lock(shard_prefix, '')
  redis.call('DEL', shard_key('lates'))
  local ids, sums = redis.call('ZRANGE', shard_key('late'), '0', recount_budget), {}
  if #ids > recount_budget then return end
  recount_budget = recount_budget - #ids
  for _, id in ipairs(ids) do
    local values = redis.call('HMGET', shard_key('j:' .. id), 'lock', 'bytes')
    if values[1] then
      sums['n' .. values[1]] = (sums['n' .. values[1]] or 0) + 1
      sums['b' .. values[1]] = (sums['b' .. values[1]] or 0) + tonumber(values[2] or '0')
    end
  end
  for field, sum in pairs(sums) do redis.call('HSET', shard_key('lates'), field, integer(sum)) end
end

local function expire_if_waiting(shard_prefix, id)
  local values = redis.call('HMGET', shard_prefix .. 'j:' .. id, 'state', 'lock', 'bytes')
  redis.call('ZREM', shard_prefix .. 'exp', id)
  -- One that runs is left: if it has to run again, its deadline is looked at then.
  if values[1] ~= 'queued' or not values[2] then return end
  select_lock(shard_prefix, values[2])
  expire_job(id, tonumber(values[3] or '0'))
end

-- When the first of an index comes due; `least` if that is sooner.
local function earliest_due(index, earliest_ms)
  local first = redis.call('ZRANGE', index, '0', '0', 'WITHSCORES')
  if #first == 0 then return earliest_ms end
  local due_ms = tonumber(first[2])
  return earliest_ms and math.min(due_ms, earliest_ms) or due_ms
end

local function poll_shard(due_index)
  -- Its turn is the next time.
  if name_budget == 0 then return {0} end
  local shard_prefix, next_ms, row = string.sub(due_index, 1, -4), nil, {-1}
  if redis.call('EXISTS', shard_prefix .. 'late', shard_prefix .. 'exp') > 0 then
    local has_vanished = false
    for _, id in ipairs(due_entries(shard_prefix .. 'late', delayed_budget)) do
      has_vanished = requeue_delayed_job(shard_prefix, id) or has_vanished
      delayed_budget = delayed_budget - 1
    end
    if has_vanished then recount_delayed_jobs(shard_prefix) end
    for _, id in ipairs(due_entries(shard_prefix .. 'exp', expiry_budget)) do
      expire_if_waiting(shard_prefix, id)
      expiry_budget = expiry_budget - 1
    end
    next_ms = earliest_due(shard_prefix .. 'exp', earliest_due(shard_prefix .. 'late', nil))
  end
  local upcoming = redis.call('ZRANGEBYSCORE', due_index, '(' .. integer(NOW_MS), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  if #upcoming > 0 then next_ms = math.min(tonumber(upcoming[2]), next_ms or math.huge) end
  local names = redis.call('ZRANGEBYSCORE', due_index, '-inf', integer(NOW_MS), 'LIMIT', '0', name_budget + 1)
  for n, lock_name in ipairs(names) do
    if n > name_budget then
      next_ms = 0
    else
      row[#row + 1] = lock_name
      row[#row + 1] = redis.call('ZRANGE', shard_prefix .. 'g:' .. lock_name, '0', '0')[1] or ''
      if string.sub(lock_name, 1, 3) == 'cb:' then
        -- Also without room, since what stands behind it may make some: see renew.lua.
        redis.call('ZREM', due_index, '')
        redis.call('ZADD', due_index, integer(NOW_MS + WEBHOOK_REVISIT_MS), lock_name)
        next_ms = math.min(next_ms or math.huge, NOW_MS + WEBHOOK_REVISIT_MS)
      end
    end
  end
  name_budget = math.max(name_budget - #names, 0)
  -- Ours is the time within the millisecond: a timer that adds to it is as much late.
  if next_ms then row[1] = math.max(next_ms * 1000 - NOW_US, 0) end
  return row
end

for i = 1, tonumber(ARGV[2]) do results[i] = poll_shard(KEYS[i]) end
return results
