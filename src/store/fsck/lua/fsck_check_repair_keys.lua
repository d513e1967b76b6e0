-- Checks keys of a shard by their kind, and repairs them if requested.
--
-- Part of the script `fsck`, after fsck_jobs.lua and fsck_indexes.lua. fsck_run_check.lua makes the
-- call, and describes input and output.
-- Complexity: O(names).

local function check_job_key(_, id)
  select_lock(FSCK_SHARD_PREFIX, '')
  if not is_job_id(id) then return report('unknown_key', 'j:' .. id) end
  local job = read_job(id)
  if not job then return end
  local key = shard_key('j:' .. id)
  -- A record without state and lock says that a job was stored, and nothing else, until it expires.
  if not job.state and not job.lock and redis.call('PTTL', key) > 0 then return end
  if job.lock then select_lock(FSCK_SHARD_PREFIX, job.lock) end
  if job.is_pending and not job.direct then
    if not job.lock or not tonumber(job.seq or '') then
      return report('invalid_value', 'j:' .. id, 'no lock or sequence')
    end
    if not queue_has_types() or has_type(shard_key('late'), 'zset') == nil then return end
    if redis.call('ZSCORE', JOBS, id) or redis.call('ZSCORE', shard_key('late'), id) then return end
    return report('job_not_queued', id, LOCK_NAME, function()
      join_queue(id, tonumber(job.seq), parse_count(job.bytes))
    end)
  end
  if
    not job.is_pending
    and not ({done = 1, dead = 1, cancelled = 1, expired = 1})[job.state or '']
  then
    return report('invalid_value', 'j:' .. id, 'state ' .. (job.state or 'unknown'))
  end
  expect_ttl(key, STATUS_RETENTION_MS)
  if job.gone then return end
  local remaining_ms = redis.call('PTTL', key)
  local index_key = shard_key(job.state)
  if
    (job.state == 'done' or job.state == 'dead')
    and remaining_ms > 1000
    and has_type(index_key, 'zset') ~= nil
    and not redis.call('ZSCORE', index_key, id)
  then
    report('ended_job_not_indexed', id, job.state, function()
      local bytes = redis.call('STRLEN', shard_key('b:' .. id))
        + redis.call('STRLEN', shard_key('r:' .. id))
      redis.call(
        'HINCRBY', SHARD_META, job.state .. '_bytes',
        integer(0 - remove_from_ledger(job.state, {id}))
      )
      add_to_index_and_count(job.state, id, remaining_ms, bytes, 1, job.owner or '')
    end)
  end
end

-- Checks an envelope. It has no TTL while its job is pending. Afterwards it has one: the envelope
-- of a dead job is kept as long as the job.
local function check_envelope_key(key, id)
  select_lock(FSCK_SHARD_PREFIX, '')
  local job, is_mistyped = read_job(id)
  if is_mistyped or redis.call('PTTL', key) ~= -1 or job and job.is_pending then return end
  report('envelope_without_job', id, job and job.state or '', function()
    redis.call('PEXPIRE', key, STATUS_RETENTION_MS)
  end)
end

-- Checks an idempotency record.
local function check_record_key(key)
  expect_ttl(key, STATUS_RETENTION_MS)
  select_lock(FSCK_SHARD_PREFIX, '')
  local id = string.match(redis.call('GET', key), '^(%x+) %S+$')
  if not id then return report('invalid_value', short_name(key), 'names no job') end
  if redis.call('EXISTS', shard_key('j:' .. id)) == 0 then
    return report('record_without_job', short_name(key), id)
  end
  local job = read_job(id)
  if not job or not job.state then return end
  local index_key = shard_key('n:' .. (job.owner or ''))
  if
    has_type(index_key, 'zset') == nil
    or redis.call('ZSCORE', index_key, string.sub(key, #FSCK_SHARD_PREFIX + 3))
  then
    return
  end
  report('wrong_count', short_name(index_key), short_name(key), function()
    index_record(key, redis.call('PTTL', key), job.owner or '')
  end)
end

-- Checks a key of a lock's queue. Entries of dead processes are no fault: `first_live_waiter`
-- removes them.
local function check_queue_key(key, name)
  select_lock(FSCK_SHARD_PREFIX, name)
  if not queue_has_types() then return end
  if key == JOBS then
    if not redis.call('ZSCORE', DUE, name) then
      report('lock_not_scheduled', name, '', function() schedule(NOW_MS) end)
    end
  elseif key == QUEUE_META then
    if has_type(JOBS, 'zset') == false then
      expect_ttl(key, math.max(redis.call('PTTL', WAITERS), OFFER_TIMEOUT_MS))
    end
  elseif key == WAITERS then
    expect_ttl(key, 600000)
  else
    local latest_ms = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    expect_ttl(key, tonumber(latest_ms) - NOW_MS)
  end
end

-- Checks an index of ended jobs; its scores are us.
local function check_index_key(key)
  expect_ttl(
    key, tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) / 1000 - NOW_MS + 1
  )
end

-- Checks the tombstones or the idempotency records of an owner; the scores are ms.
local function check_owner_index(key)
  expect_ttl(key, tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) - NOW_MS + 1)
end

local function expect_day_ttl(key) expect_ttl(key, STATUS_RETENTION_MS) end

-- The next heartbeat sets the right TTL.
local function expect_minute_ttl(key) expect_ttl(key, 60000) end

-- By kind: the type, true if a name follows the kind, and the check.
local KEY_KINDS = {
  h = {'zset', true, check_queue_key},
  l = {'hash', true, check_queue_key},
  q = {'zset', true, check_queue_key},
  g = {'zset', true, check_queue_key},
  j = {'hash', true, check_job_key},
  b = {'string', true, check_envelope_key},
  r = {'string', true, expect_day_ttl},
  i = {'string', true, check_record_key},
  k = {'string', true, expect_day_ttl},
  m = {'string', true, expect_day_ttl},
  t = {'string', true, check_envelope_key},
  o = {'hash', true, expect_day_ttl},
  e = {'zset', true, check_owner_index},
  n = {'zset', true, check_owner_index},
  meta = {'hash', false, expect_no_ttl},
  audit = {'hash', false, expect_no_ttl},
  limits = {'hash', false, expect_no_ttl},
  paused = {'string', false, expect_no_ttl},
  workers = {'string', false, expect_no_ttl},
  limiters = {'zset', false, expect_minute_ttl},
  queues = {'zset', false, expect_no_ttl},
  due = {'zset', false, expect_no_ttl},
  late = {'zset', false, expect_no_ttl},
  exp = {'zset', false, expect_no_ttl},
  done = {'zset', false, check_index_key},
  dead = {'zset', false, check_index_key},
  donebytes = {'hash', false, expect_day_ttl},
  deadbytes = {'hash', false, expect_day_ttl},
  doneby = {'zset', false, expect_day_ttl},
  deadby = {'zset', false, expect_day_ttl},
  doneowners = {'zset', false, expect_day_ttl},
  deadowners = {'zset', false, expect_day_ttl},
  lates = {'hash', false, expect_no_ttl},
  f = {'hash', false, expect_no_ttl},
  watch = {'string', false, expect_no_ttl},
  replicas = {'string', false, expect_day_ttl},
  z = {'zset', true, expect_no_ttl},
  zl = {'zset', true, expect_no_ttl},
  zt = {'hash', true, expect_no_ttl},
  zm = {'hash', true, expect_no_ttl},
  zd = {'zset', true, expect_no_ttl},
  zw = {'zset', true, expect_no_ttl},
  zf = {'hash', true, expect_no_ttl},
  zr = {'string', true, expect_day_ttl},
  zp = {'string', true, expect_day_ttl},
}
for _, kind in ipairs({'c', 'cs', 'cg', 'p', 'ps', 'pg'}) do
  KEY_KINDS[kind] = {'string', true, expect_day_ttl}
end
-- zu:<queue> has the unique keys of pending tasks. zu:<queue>@<unique> is a unique key that is used
-- in its window.
local UNIQUE_KEYS_KIND, UNIQUE_WINDOW_KIND =
  {'hash', true, expect_no_ttl}, {'string', true, expect_day_ttl}

-- Checks keys by their kind. Returns the names of locks with jobs, so that locks which `due` lacks
-- are checked too.
function checks.keys(_, ...)
  local lock_names = {}
  for _, key in ipairs({...}) do
    local kind, separator, name =
      string.match(string.sub(key, #FSCK_SHARD_PREFIX + 1), '^(%a+)(:?)(.*)$')
    local expected = KEY_KINDS[kind or '']
    if kind == 'zu' then
      expected = string.find(name, '@', 1, true) and UNIQUE_WINDOW_KIND or UNIQUE_KEYS_KIND
    end
    if not expected or expected[2] ~= (separator == ':') then
      if redis.call('EXISTS', key) == 1 then report('unknown_key', short_name(key)) end
    elseif has_type(key, expected[1]) then
      expected[3](key, name)
      if kind == 'g' then lock_names[#lock_names + 1] = name end
    end
  end
  return '', lock_names
end
