-- Returns the due locks of some shards, and the time until the next one is due.
--
-- It also moves delayed jobs that are due into their queues, and expires waiting jobs that are past
-- their deadline.
--
-- Input:
--   KEYS     due index of each shard (ZSET), at most 64
--   ARGV[1]  most lock names in the whole reply
--   ARGV[2]  number of shards; in a cluster KEYS also has the slot guard key
-- The script finds locks and jobs in the index, so their keys cannot be declared. They carry the
-- hash tag of the declared ones.
-- Output, per shard, an array:
--   us until something is due; 0 if more is due than this call could handle; -1 if nothing is
--   then, per due lock: its name, and the id of its first job or ''
-- Once the reply has ARGV[1] names, the other shards are not polled: 0, and no names.
-- Complexity: O(shards * log n + (names + jobs) * log n), with at most SCAN_LIMIT delayed jobs and
-- SCAN_LIMIT deadlines in one call.
-- A lock stays due until a claim (claim_lock_and_job.lua) moves its entry. The lock of a webhook
-- job may wait long for a claim, so this script moves its entry by WEBHOOK_REVISIT_MS, and the
-- locks behind it are polled meanwhile.
-- Repeatable: a second copy finds less to do.
-- Caller gone: nothing is left half done.
local results, name_budget, delayed_budget, expiry_budget =
  {}, tonumber(ARGV[1]), SCAN_LIMIT, SCAN_LIMIT
-- Delayed jobs that one call may read to recount them.
local recount_budget = 500
local WEBHOOK_REVISIT_MS = 1000

-- Returns the due entries of an index.
local function due_entries(index, limit)
  if limit == 0 then return {} end
  return redis.call('ZRANGEBYSCORE', index, '-inf', integer(NOW_MS), 'LIMIT', '0', limit)
end

-- Puts a delayed job back into its queue, at its old sequence, or expires it. Returns true if its
-- record has vanished.
local function requeue_delayed_job(shard_prefix, id)
  local values =
    redis.call('HMGET', shard_prefix .. 'j:' .. id, 'state', 'lock', 'seq', 'bytes', 'exp')
  local bytes = tonumber(values[4] or '0')
  select_lock(shard_prefix, values[2] or '')
  if values[1] == 'queued' and values[2] then
    if values[5] and tonumber(values[5]) <= NOW_MS then return expire_job(id, bytes) end
    remove_delayed_job(id, bytes)
    local sequence, first = tonumber(values[3]) or next_sequence(),
      redis.call('ZRANGE', JOBS, '0', '0', 'WITHSCORES')
    -- The job becomes the first: an offer to the previous first one, not claimed yet, is withdrawn.
    if #first > 0 and sequence < tonumber(first[2]) then
      redis.call('ZREM', HOLDERS, 'j' .. first[1])
    end
    return join_queue(id, sequence, bytes)
  end
  if values[1] and (values[2] or values[1] ~= 'queued') then
    return remove_delayed_job(id, bytes) and nil
  end
  -- The record has vanished, or its field `lock` has: the queue of the job is unknown.
  redis.call('ZREM', shard_key('late'), id)
  local request_key = shard_key('b:' .. id)
  uncount_job(redis.call('STRLEN', request_key) + redis.call('STRLEN', shard_key('t:' .. id)))
  redis.call('DEL', shard_key('j:' .. id), request_key, shard_key('t:' .. id))
  return true
end

-- Recounts the delayed jobs of all locks, since the lock of a vanished job is unknown. If there are
-- more than `recount_budget`, the counts restart at 0: a limit that is too wide for a while is
-- better than a refusal without cause.
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

-- Expires a job unless it is running: the deadline of a running job is checked again before its
-- next run.
local function expire_if_waiting(shard_prefix, id)
  local values = redis.call('HMGET', shard_prefix .. 'j:' .. id, 'state', 'lock', 'bytes')
  redis.call('ZREM', shard_prefix .. 'exp', id)
  if values[1] ~= 'queued' or not values[2] then return end
  select_lock(shard_prefix, values[2])
  expire_job(id, tonumber(values[3] or '0'))
end

-- Returns the first due time of an index, or `earliest_ms` if that is earlier.
local function earliest_due(index, earliest_ms)
  local first = redis.call('ZRANGE', index, '0', '0', 'WITHSCORES')
  if #first == 0 then return earliest_ms end
  local due_ms = tonumber(first[2])
  return earliest_ms and math.min(due_ms, earliest_ms) or due_ms
end

local function poll_shard(due_index)
  -- The next call polls this shard.
  if name_budget == 0 then return {0} end
  local shard_prefix, next_ms, reply = string.sub(due_index, 1, -4), nil, {-1}
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
  local upcoming = redis.call('ZRANGEBYSCORE', due_index, '(' .. integer(NOW_MS), '+inf',
    'WITHSCORES', 'LIMIT', '0', '1')
  if #upcoming > 0 then next_ms = math.min(tonumber(upcoming[2]), next_ms or math.huge) end
  local names = redis.call('ZRANGEBYSCORE', due_index, '-inf', integer(NOW_MS),
    'LIMIT', '0', name_budget + 1)
  for n, lock_name in ipairs(names) do
    if n > name_budget then
      next_ms = 0
    else
      reply[#reply + 1] = lock_name
      reply[#reply + 1] = redis.call('ZRANGE', shard_prefix .. 'g:' .. lock_name, '0', '0')[1] or ''
      -- A webhook job has such a lock.
      if string.sub(lock_name, 1, 3) == 'cb:' then
        -- Moves the entry at `maxmemory` too (see renew.lua): the locks behind it may free memory.
        redis.call('ZREM', due_index, '')
        redis.call('ZADD', due_index, integer(NOW_MS + WEBHOOK_REVISIT_MS), lock_name)
        next_ms = math.min(next_ms or math.huge, NOW_MS + WEBHOOK_REVISIT_MS)
      end
    end
  end
  name_budget = math.max(name_budget - #names, 0)
  -- Counted from NOW_US: counted from NOW_MS, the caller's timer would be up to 1 ms late.
  if next_ms then reply[1] = math.max(next_ms * 1000 - NOW_US, 0) end
  return reply
end

for i = 1, tonumber(ARGV[2]) do results[i] = poll_shard(KEYS[i]) end
return results
