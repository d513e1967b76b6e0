-- What is looked for in a shard, one job or one lock at a time. Stands behind wait_queue.lua, ended_jobs.lua, job_common.lua, finish_job.lua and
-- claim_job.lua, before fsck_indexes.lua and fsck_keys.lua; how it is called is told there.
--
-- A look is atomic and reads all that it compares: what a fleet at work does between two looks is not seen as a
-- fault. It changes nothing unless it is told to mend, and then only what it understands: where a key is of another
-- type or a fact is none that any script writes, it is told of, and left. No mending ends a job that can still run.
--
-- TAG     what every key of the shard begins with
-- MEND    whether to mend
-- found   rows {what, name, detail, '1' if it was mended}: what is one of the words of `FindingKind`
local FSCK_SHARD_PREFIX, REPAIR = string.match(KEYS[1], '^(.*}:)'), ARGV[2] == '1'
local findings = {}
-- How long somebody who is due may let wait for him, ms; and until when an orphan is a fleet's own business: as long
-- as a dead worker's watch, and what its successor needs.
local SLACK_MS, ORPHAN_GRACE_MS = 10000, 60000

-- What the server will not do for anybody, as it has answered: nothing is mended then, and it is the call's answer.
local server_error

-- Notes what is wrong. One that can not be mended stays as it is.
local function report(kind, name, detail, repair)
  local is_repaired, fault = false, nil
  if REPAIR and repair then is_repaired, fault = pcall(repair) end
  if fault and not is_repaired then
    local text = type(fault) == 'table' and fault.err or tostring(fault)
    for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
      local start = string.find(text, code, 1, true)
      if start then server_error = redis.error_reply(string.sub(text, start)) end
    end
  end
  findings[#findings + 1] = {kind, name, detail or '', is_repaired and '1' or '0'}
end

local function short_name(key) return string.sub(key, #FSCK_SHARD_PREFIX + 1) end

-- Whether a key is there and of this type; nil if it is of another.
local function has_type(key, expected)
  local actual = redis.call('TYPE', key).ok
  if actual == 'none' then return false end
  if actual == expected then return true end
  report('type', short_name(key), actual)
  return nil
end

-- Whether all keys of the line are of their types: only then is anything of it mended, or a mending might stop
-- half-way.
local function queue_has_types()
  local is_well_typed = true
  for key, expected in pairs({[HOLDERS] = 'zset', [QUEUE_META] = 'hash', [WAITERS] = 'zset', [JOBS] = 'zset', [DUE] = 'zset', [SHARD_META] = 'hash'}) do
    if has_type(key, expected) == nil then is_well_typed = false end
  end
  return is_well_typed
end

-- A key that must stay, because something waits for it.
local function expect_no_ttl(key)
  if redis.call('PTTL', key) < 0 then return end
  report('has_end', short_name(key), '', function() redis.call('PERSIST', key) end)
end

-- A key that must end by itself.
local function expect_ttl(key, ms)
  if redis.call('PTTL', key) ~= -1 then return end
  report('no_end', short_name(key), '', function() redis.call('PEXPIRE', key, integer(math.max(ms, 1))) end)
end

-- A number that was written; `odd` if it is none, which no sum is.
local function parse_count(text, default) return tonumber(text or '0') or default or 0 end

local function is_job_id(id) return #id == 34 and string.find(id, '^%x+$') ~= nil end

local CHECKED_FIELDS = {'state', 'lock', 'run', 'bytes', 'exp', 'again', 'max', 'attempts', 'direct', 'seq', 'gone', 'owner'}
-- What is known of a job; nil if that is nothing, or of another type.
local function read_job(id)
  local exists = has_type(shard_key('j:' .. id), 'hash')
  if not exists then return nil, exists == nil end
  local values, job = redis.call('HMGET', shard_key('j:' .. id), unpack(CHECKED_FIELDS)), {}
  for i, field in ipairs(CHECKED_FIELDS) do job[field] = values[i] or nil end
  job.is_pending = job.state == 'queued' or job.state == 'running'
  return job, false
end

-- When the last of those who are in ends, without a look's taking anybody out.
local function held_until_ms()
  local latest = redis.call('ZRANGE', HOLDERS, -1, -1, 'WITHSCORES')
  return latest[2] and tonumber(latest[2]) > NOW_MS and tonumber(latest[2]) or nil
end

-- The job can not run any more: it is dead, and the next one is looked at.
local function fail_job(id, reason)
  end_without_run(id, load_job(id), redis.call('GET', shard_key('b:' .. id)), 'dead', reason, STATUS_RETENTION_MS)
  if redis.call('EXISTS', JOBS) == 1 then redis.call('ZADD', DUE, integer(NOW_MS), LOCK_NAME) end
  offer_next()
end

-- What a job that waits or runs needs: its keys without an end, its request, its deadline in the index.
local function check_job_keys(id, job)
  expect_no_ttl(shard_key('j:' .. id))
  if has_type(shard_key('b:' .. id), 'string') then expect_no_ttl(shard_key('b:' .. id)) end
  local deadline_ms = tonumber(job.exp or '')
  if deadline_ms and deadline_ms > NOW_MS + 1000 and not redis.call('ZSCORE', shard_key('exp'), id) then
    report('no_deadline', id, '', function() redis.call('ZADD', shard_key('exp'), integer(deadline_ms), id) end)
  end
end

-- A run whose lock is gone. A visit sees to it as soon as it is due; here it is one that is not, or that nobody has
-- come for.
local function check_run(id, job)
  local deadline_ms = job.run and redis.call('ZSCORE', HOLDERS, 'h' .. job.run)
  if deadline_ms and tonumber(deadline_ms) > NOW_MS then return true end
  local due_ms = tonumber(redis.call('ZSCORE', DUE, LOCK_NAME) or '')
  local is_scheduled = due_ms and due_ms > NOW_MS - ORPHAN_GRACE_MS and due_ms <= math.max(held_until_ms() or NOW_MS, NOW_MS) + SLACK_MS
  if is_scheduled then return false end
  local may_repeat = job.again == '1' and parse_count(job.attempts) < parse_count(job.max)
  report('orphan', id, LOCK_NAME, function()
    -- One that may run again does so at the next visit.
    if may_repeat then schedule(NOW_MS) else fail_job(id, 'crashed, may have run') end
  end)
  return false
end

-- A job of the line, at its place.
local function check_queued_job(id)
  if not is_job_id(id) then return report('odd', short_name(JOBS), id) end
  local job, is_mistyped = read_job(id)
  if is_mistyped then return end
  if not job then
    return report('no_job', id, LOCK_NAME, function() fail_job(id, 'lost') end)
  end
  if job.lock ~= LOCK_NAME then return report('odd', id, 'in the line of another lock') end
  local bytes = parse_count(job.bytes)
  if not job.is_pending then
    return report('ended', id, LOCK_NAME, function()
      redis.call('ZREM', JOBS, id)
      leave_queue(id, bytes)
    end)
  end
  if redis.call('ZSCORE', shard_key('late'), id) then
    report('twice', id, LOCK_NAME, function() remove_delayed_job(id, bytes) end)
  end
  check_job_keys(id, job)
  local is_running = job.state == 'running' and check_run(id, job)
  -- Who runs it has its request.
  if not is_running and redis.call('EXISTS', shard_key('b:' .. id)) == 0 then
    report('no_request', id, LOCK_NAME, function() fail_job(id, 'lost') end)
  end
end

-- When somebody looks at a lock that has jobs; and one that has none is not looked at.
local function check_due()
  local due_ms = tonumber(redis.call('ZSCORE', DUE, LOCK_NAME) or '')
  local first = redis.call('ZRANGE', JOBS, 0, 0)[1]
  if not first then
    if not due_ms then return end
    return report('due_idle', LOCK_NAME, '', function()
      redis.call('ZREM', DUE, LOCK_NAME)
      clear_queue_meta()
    end)
  end
  local function schedule_now() schedule(NOW_MS) end
  if not due_ms then return report('not_due', LOCK_NAME, '', schedule_now) end
  local backoff_ms = backoff_end(redis.call('HGET', QUEUE_META, 'back'), first)
  -- Whoever holds it moves its line on in the end. Free, it waits for that look.
  if not held_until_ms() and due_ms > (backoff_ms or NOW_MS) + SLACK_MS then
    report('due_late', LOCK_NAME, 'in ' .. integer(due_ms - NOW_MS) .. ' ms', schedule_now)
  end
end

-- The bytes of a line of not too many jobs.
local function check_queue_bytes(ids)
  local total_bytes, recorded_bytes = 0, parse_count(redis.call('HGET', QUEUE_META, 'bytes') or nil, -1)
  for _, id in ipairs(ids) do
    if redis.call('TYPE', shard_key('j:' .. id)).ok ~= 'hash' then return end
    total_bytes = total_bytes + parse_count(redis.call('HGET', shard_key('j:' .. id), 'bytes') or nil)
  end
  if total_bytes == recorded_bytes then return end
  report('tally', short_name(QUEUE_META), 'bytes ' .. integer(recorded_bytes) .. ', there are ' .. integer(total_bytes), function()
    redis.call('HSET', QUEUE_META, 'bytes', integer(total_bytes))
  end)
end
