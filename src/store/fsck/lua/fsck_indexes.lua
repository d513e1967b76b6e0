-- Provides the checks of a shard's indexes, one page a call, and of its counts.
--
-- Part of the script `fsck`, after fsck_jobs.lua and before fsck_check_repair_keys.lua.
-- fsck_run_check.lua describes the call.
--
-- A function of `checks` takes the cursor and the names of the call. It returns the cursor of the
-- next page ('' after the last), and the names for the reply.

-- Returns the names of one page of a ZSET, and the cursor of the next page ('' after the last).
local function scan_page(index_key, cursor)
  if not has_type(index_key, 'zset') then return {}, '' end
  local reply = redis.call('ZSCAN', index_key, cursor, 'COUNT', SCAN_LIMIT)
  local names = {}
  for i = 1, #reply[2], 2 do names[#names + 1] = reply[2][i] end
  return names, reply[1] == '0' and '' or reply[1]
end

local checks = {}

-- Returns the names of locks with jobs, for `wait_queues`.
function checks.due(cursor)
  local names, next_cursor = scan_page(FSCK_SHARD_PREFIX .. 'due', cursor)
  return next_cursor, names
end

-- Most jobs of one call of `wait_queues`. Each is compared with several keys: a hundred took 3 ms.
local QUEUED_JOB_LIMIT = 50

-- Checks locks with their jobs, in the first lock only jobs after a sequence. With more than
-- `QUEUED_JOB_LIMIT` jobs, the rest is left to another call: returns '<position of the lock>
-- <sequence>'.
function checks.wait_queues(after_sequence, ...)
  local job_budget = QUEUED_JOB_LIMIT
  for position, lock_name in ipairs({...}) do
    select_lock(FSCK_SHARD_PREFIX, lock_name)
    if queue_has_types() then
      if redis.call('EXISTS', JOBS) == 1 then
        expect_no_ttl(JOBS)
        if redis.call('EXISTS', QUEUE_META) == 1 then expect_no_ttl(QUEUE_META) end
      end
      local rows = redis.call(
        'ZRANGEBYSCORE', JOBS, '(' .. after_sequence, '+inf', 'WITHSCORES', 'LIMIT', 0, job_budget
      )
      local ids = {}
      for i = 1, #rows, 2 do ids[#ids + 1] = rows[i] end
      for _, id in ipairs(ids) do check_queued_job(id) end
      job_budget = job_budget - #ids
      if job_budget <= 0 then return position .. ' ' .. rows[#rows] end
      if #ids == redis.call('ZCARD', JOBS) then check_queue_bytes(ids) end
      check_due()
    end
    after_sequence = '-inf'
  end
  return ''
end

-- Checks a delayed job without an envelope. The repair moves it into its lock's queue, where its
-- claim ends it as lost. The queue must have the right types, or the job would leave `late` and be
-- nowhere.
local function check_delayed_job(id, job)
  if not job.lock or not tonumber(job.seq or '') then
    return report('invalid_value', 'j:' .. id, 'no lock or sequence')
  end
  if has_type(shard_key('lates'), 'hash') == nil or not queue_has_types() then return end
  report('job_without_envelope', id, LOCK_NAME, function()
    remove_delayed_job(id, parse_count(job.bytes))
    join_queue(id, tonumber(job.seq), parse_count(job.bytes))
  end)
end

-- Checks delayed jobs.
function checks.delayed(cursor)
  local names, next_cursor = scan_page(FSCK_SHARD_PREFIX .. 'late', cursor)
  for _, id in ipairs(names) do
    select_lock(FSCK_SHARD_PREFIX, '')
    local job, is_mistyped = nil, true
    if is_job_id(id) then
      job, is_mistyped = read_job(id)
    else
      report('invalid_value', 'late', id)
    end
    if job then select_lock(FSCK_SHARD_PREFIX, job.lock or '') end
    local function remove_entry() redis.call('ZREM', shard_key('late'), id) end
    if job and job.state == 'queued' then
      check_job_keys(id, job)
      if redis.call('EXISTS', shard_key('b:' .. id)) == 0 then check_delayed_job(id, job) end
    elseif job then
      report('ended_job_in_index', id, 'late', remove_entry)
    elseif not is_mistyped then
      report('entry_without_job', id, 'late', function()
        remove_entry()
        redis.call('PEXPIRE', shard_key('b:' .. id), STATUS_RETENTION_MS)
      end)
    end
  end
  return next_cursor
end

-- Checks the index of deadlines.
function checks.deadlines(cursor)
  local names, next_cursor = scan_page(FSCK_SHARD_PREFIX .. 'exp', cursor)
  select_lock(FSCK_SHARD_PREFIX, '')
  for _, id in ipairs(names) do
    local job, is_mistyped = read_job(id)
    if not is_mistyped and not (job and job.is_pending) then
      report('entry_without_job', id, 'exp', function()
        redis.call('ZREM', shard_key('exp'), id)
      end)
    end
  end
  return next_cursor
end

-- Returns true if no key of the ledger of an index of ended jobs has another type.
local function ledger_has_types(kind)
  local is_well_typed = true
  for suffix, expected in pairs({bytes = 'hash', by = 'zset', owners = 'zset'}) do
    if has_type(FSCK_SHARD_PREFIX .. kind .. suffix, expected) == nil then is_well_typed = false end
  end
  return is_well_typed
end

-- Checks that an ended job is in the ledger of its index.
local function check_ledger_entry(kind, id, job, score)
  local size, stamp, owner = string.match(
    redis.call('HGET', shard_key(kind .. 'bytes'), id) or '', '^(%d+) ?(%d*) ?(.*)$'
  )
  if
    size
    and redis.call('ZSCORE', shard_key(kind .. 'by'), owner_prefix(owner) .. stamp .. ':' .. id)
  then
    return
  end
  report('wrong_count', kind .. 'bytes', id, function()
    local bytes = ENDED_JOB_OVERHEAD
      + redis.call('STRLEN', shard_key('b:' .. id))
      + redis.call('STRLEN', shard_key('r:' .. id))
    redis.call(
      'HINCRBY', SHARD_META, kind .. '_bytes', integer(bytes - remove_from_ledger(kind, {id}))
    )
    add_to_ledger(kind, id, job.owner or '', string.format('%016.0f', tonumber(score)), bytes)
  end)
end

-- Checks the totals of a ledger of at most `SCAN_LIMIT` jobs.
local function check_ledger_totals(kind)
  if
    redis.call('EXISTS', shard_key(kind)) == 0
    or redis.call('HLEN', shard_key(kind .. 'bytes')) > SCAN_LIMIT
  then
    return
  end
  local total_bytes, owned_bytes, bytes_by_owner = 0, 0, {}
  for _, entry in ipairs(redis.call('HVALS', shard_key(kind .. 'bytes'))) do
    local size, _, owner = string.match(entry, '^(%d+) ?(%d*) ?(.*)$')
    total_bytes = total_bytes + parse_count(size)
    if size and owner ~= '' then
      owned_bytes = owned_bytes + parse_count(size)
      bytes_by_owner[owner] = (bytes_by_owner[owner] or 0) + parse_count(size)
    end
  end
  local values, owners_key =
    redis.call('HMGET', SHARD_META, kind .. '_bytes', kind .. '_owned'), shard_key(kind .. 'owners')
  local is_right = parse_count(values[1] or nil, -1) == total_bytes
    and parse_count(values[2] or nil, -1) == owned_bytes
  local recorded, owner_count = redis.call('ZRANGE', owners_key, 0, SCAN_LIMIT, 'WITHSCORES'), 0
  for _ in pairs(bytes_by_owner) do owner_count = owner_count + 1 end
  is_right = is_right and #recorded == 2 * owner_count
  for i = 1, #recorded, 2 do
    is_right = is_right and bytes_by_owner[recorded[i]] == tonumber(recorded[i + 1])
  end
  if is_right then return end
  report('wrong_count', kind .. 'owners', 'there are ' .. integer(total_bytes), function()
    redis.call(
      'HSET', SHARD_META, kind .. '_bytes', integer(total_bytes),
      kind .. '_owned', integer(owned_bytes)
    )
    redis.call('DEL', owners_key)
    for owner, size in pairs(bytes_by_owner) do
      redis.call('ZADD', owners_key, integer(size), owner)
    end
    if owner_count > 0 then
      redis.call('PEXPIRE', owners_key, math.max(redis.call('PTTL', shard_key(kind)), 1))
    end
  end)
end

-- Checks an index of ended jobs from a score (us) on; '0' is the first page.
local function check_ended_jobs(index_kind, cursor)
  local index_key = FSCK_SHARD_PREFIX .. index_kind
  if not has_type(index_key, 'zset') or has_type(SHARD_META, 'hash') == nil then return '' end
  select_lock(FSCK_SHARD_PREFIX, '')
  local has_ledger = ledger_has_types(index_kind)
  -- Skips retentions that end within a second: the job may have expired before its entry.
  if cursor == '0' then cursor = integer(NOW_US + 1000000) end
  local rows = redis.call(
    'ZRANGEBYSCORE', index_key, '(' .. cursor, '+inf', 'WITHSCORES', 'LIMIT', 0, SCAN_LIMIT
  )
  for i = 1, #rows, 2 do
    local id = rows[i]
    local job, is_mistyped = read_job(id)
    -- Counted as removed by hand (`<kind>_out`), since no limit or TTL has removed it.
    local function remove_entry() remove_from_index(index_kind, id) end
    if not job and not is_mistyped then
      report('entry_without_job', id, index_kind, remove_entry)
    end
    if job and (job.state ~= index_kind or job.gone) then
      report(
        'ended_job_in_index', id,
        'is ' .. (job.gone and 'a tombstone' or job.state or '?') .. ', not ' .. index_kind,
        remove_entry
      )
    elseif job and has_ledger then
      check_ledger_entry(index_kind, id, job, rows[i + 1])
    end
  end
  if #rows < 2 * SCAN_LIMIT and has_ledger then check_ledger_totals(index_kind) end
  return #rows == 2 * SCAN_LIMIT and integer(tonumber(rows[#rows])) or ''
end
function checks.done(cursor) return check_ended_jobs('done', cursor) end
function checks.dead(cursor) return check_ended_jobs('dead', cursor) end

-- Returns the number and bytes of the jobs in the queues of these locks, or nil if a key has
-- another type.
local function sum_queued_jobs(lock_names)
  local job_count, bytes = 0, 0
  for _, lock_name in ipairs(lock_names) do
    if
      has_type(FSCK_SHARD_PREFIX .. 'g:' .. lock_name, 'zset') == nil
      or has_type(FSCK_SHARD_PREFIX .. 'l:' .. lock_name, 'hash') == nil
    then
      return nil
    end
    job_count = job_count + redis.call('ZCARD', FSCK_SHARD_PREFIX .. 'g:' .. lock_name)
    bytes = bytes
      + parse_count(redis.call('HGET', FSCK_SHARD_PREFIX .. 'l:' .. lock_name, 'bytes') or nil)
  end
  return job_count, bytes
end

-- Returns the bytes of these delayed jobs, and their number and bytes by lock as in the fields of
-- `lates`; nil if a key has another type.
local function sum_delayed_jobs(delayed_ids)
  local bytes, delayed_counts = 0, {}
  for _, id in ipairs(delayed_ids) do
    if has_type(shard_key('j:' .. id), 'hash') == nil then return nil end
    local values = redis.call('HMGET', shard_key('j:' .. id), 'lock', 'bytes')
    local size, lock_name = parse_count(values[2] or nil), values[1] or ''
    bytes = bytes + size
    delayed_counts['n' .. lock_name] = (delayed_counts['n' .. lock_name] or 0) + 1
    delayed_counts['b' .. lock_name] = (delayed_counts['b' .. lock_name] or 0) + size
  end
  return bytes, delayed_counts
end

-- Checks a recorded count. A count of 0 has no field in other keys than the shard's counts.
local function compare_count(key, field, recorded, actual)
  if recorded == actual then return end
  report(
    'wrong_count', short_name(key),
    field .. ' ' .. integer(recorded) .. ', there are ' .. integer(actual),
    function()
      if actual == 0 and key ~= SHARD_META then
        redis.call('HDEL', key, field)
      else
        redis.call('HSET', key, field, integer(actual))
      end
    end
  )
end

-- Compares the counts of pending jobs, of at most `SCAN_LIMIT` locks and delayed jobs together.
--
-- The names are locks with jobs that the scan of all keys has found, since `due` may lack some.
-- - Scope 'all': the scan was complete.
-- - Scope 'some': it was not. A missing part of a count may belong to locks that were not found, so
--   only an excess is a fault.
--
-- Returns
-- - 'many' if there are too many to count
-- - 'some' if a count was too small in the scope 'some'
-- - '' otherwise; also if a key has another type, which is reported without comparing counts
function checks.totals(scope, ...)
  for kind, expected in pairs({due = 'zset', late = 'zset', lates = 'hash', f = 'hash'}) do
    if has_type(FSCK_SHARD_PREFIX .. kind, expected) == nil then return '' end
  end
  local lock_names = redis.call('ZRANGE', FSCK_SHARD_PREFIX .. 'due', 0, SCAN_LIMIT)
  for _, lock_name in ipairs({...}) do
    if not redis.call('ZSCORE', FSCK_SHARD_PREFIX .. 'due', lock_name) then
      lock_names[#lock_names + 1] = lock_name
    end
  end
  local delayed_ids = redis.call('ZRANGE', FSCK_SHARD_PREFIX .. 'late', 0, SCAN_LIMIT)
  if #lock_names + #delayed_ids > SCAN_LIMIT then return 'many' end
  local queued_count, queued_bytes = sum_queued_jobs(lock_names)
  if not queued_count then return '' end
  select_lock(FSCK_SHARD_PREFIX, '')
  local delayed_bytes, delayed_counts = sum_delayed_jobs(delayed_ids)
  if not delayed_bytes then return '' end
  local job_count, bytes = queued_count + #delayed_ids, queued_bytes + delayed_bytes
  local shard_counts = redis.call('HMGET', SHARD_META, 'jobs', 'bytes')
  local is_incomplete = false
  for i, field in ipairs({'jobs', 'bytes'}) do
    local recorded, actual = parse_count(shard_counts[i] or nil, -1), ({job_count, bytes})[i]
    if scope == 'some' and actual < recorded then
      is_incomplete = true
    else
      compare_count(SHARD_META, field, recorded, actual)
    end
  end
  local recorded_counts = redis.call('HGETALL', shard_key('lates'))
  for i = 1, #recorded_counts, 2 do
    compare_count(
      shard_key('lates'), recorded_counts[i], parse_count(recorded_counts[i + 1], -1),
      delayed_counts[recorded_counts[i]] or 0
    )
    delayed_counts[recorded_counts[i]] = nil
  end
  for field, actual in pairs(delayed_counts) do
    compare_count(shard_key('lates'), field, 0, actual)
  end
  return is_incomplete and 'some' or ''
end
