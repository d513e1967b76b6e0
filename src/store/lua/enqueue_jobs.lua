-- Stores deferred requests as jobs behind the locks that they found busy, one after the other. The
-- lock is checked again in the same step, so it cannot become free unnoticed before the job is
-- queued.
--
-- Input, per job (at most 16):
--   KEYS  holders of its lock (ZSET), then its idempotency record (STRING) if it has a fingerprint;
--         in a cluster, the guard key of the shard comes last (`slot_guard_key` in key_names.rs)
--   ARGV  job id
--         envelope of the request
--         terms, '<flags> <number> ...', 15 numbers
--         then one argument for each flag, in this order:
--           p       fingerprint of the request, which has an Idempotency-Key
--           o       owner
--           r       method and route pattern
--           f or l  merge group; its first (f) or last (l) request wins
--           c       webhook job: '<job> <max attempts> <lock>', a newline, its request
-- Numbers of the terms:
--    1      1: may run again after a crash
--    2      attempts allowed
--    3      1: later jobs may overtake it while it waits for a retry
--    4      1: needs a worker that watches the shard
--    5      delay, ms
--    6      time until its deadline, ms, or 0
--    7      TTL of its idempotency record, ms
--    8, 9   maximum of jobs and bytes of the lock
--   10, 11  maximum of jobs and bytes of the shard, a part of which is reserved (RESERVE_DIVISOR)
--   12, 13  maximum of jobs and bytes of the owner in the shard
--   14      maximum of bytes that the shard retains of done jobs, and of dead ones
--   15      maximum of idempotency records of the owner in the shard
-- The bytes of a job are those of its request and of its webhook's request.
-- Output, per job:
--   {'stored', position}      from 1; 0 if the job is delayed
--   {'duplicate', job id}     the same request was accepted before, as this job
--   {'mismatch'}              the idempotency key was used for another request
--   {'full'}                  a limit of jobs or bytes is reached
--   {'too_many_records', ms}  the owner has its maximum of records; the first ends after this time
--   {'no_worker'}             no worker watches the shard
--   {'merged', job id}        merged into this waiting job
--   {'error', text}           failed, without effect on other jobs
-- Complexity: O(jobs * log n).
-- Idempotent by job id. A refusal leaves no trace, so a late copy of the call is stored if there is
-- room by then: a caller that sent several copies treats a refusal as an unknown outcome.
-- A waiting job has no TTL. It is indexed in g or `late`, from which poll_due_locks_and_jobs.lua
-- finds it.
-- Further keys, with the same hash tag:
--   k:<group>:<lock>  STRING  latest job of a merge group, until a day after its delay
--   m:<job>           STRING  job that this request was merged into, for a minute
local GROUP_TTL_MS, MERGE_MARK_TTL_MS = 86400000, 60000
-- Number of an owner's jobs that are checked when the owner has reached a limit.
local OWNER_SAMPLE_SIZE = 16
-- Maximum number of idempotency records that end with a job: its own, and those of merged requests.
local MAX_JOB_RECORDS = 32

-- Reserve: a quarter of a shard's jobs and bytes is kept for locks with less than SHORT_QUEUE_JOBS
-- jobs and owners with less than SMALL_OWNER_JOBS. The name of a lock determines its shard, so a
-- client can choose names that fill the shard of another client. A job without an owner may be of
-- that client, so it may use half of the reserve.
local RESERVE_DIVISOR, HALF_RESERVE_DIVISOR = 4, 8
local SHORT_QUEUE_JOBS, SMALL_OWNER_JOBS = 4, 16
-- Part of the shard's bytes that such a lock and such an owner may have with the new job, unless
-- that is their first.
local SHORT_QUEUE_BYTES_DIVISOR, SMALL_OWNER_BYTES_DIVISOR = 64, 16
-- A smaller limit of jobs or of bytes has no reserve.
local MIN_RESERVED_JOBS, MIN_RESERVED_BYTES = 64, 1048576

-- Returns the job's position from 1; 0 if it is delayed; nil if it does not wait.
local function queue_position(id)
  local rank = redis.call('ZRANK', JOBS, id)
  if rank then return rank + 1 end
  return redis.call('ZSCORE', shard_key('late'), id) and 0 or nil
end

-- Returns the reply if the request was accepted before; nil if it is new.
local function previous_outcome(id, job_key, record_key, fingerprint, merge_terms)
  if redis.call('EXISTS', job_key) == 1 then return {'stored', queue_position(id) or 1} end
  if merge_terms ~= '' then
    local target_id = redis.call('GET', shard_key('m:' .. id))
    if target_id then return {'merged', target_id} end
  end
  local record = fingerprint ~= '' and redis.call('GET', record_key)
  if not record then return nil end
  local record_job, record_fingerprint = string.match(record, '^(%S+) (%S+)$')
  if release_crashed_record(record_key, record_job) then return nil end
  -- The fingerprint of a direct run is known at its end, if its handler has read the whole body.
  -- Until then it is '-', which matches every request.
  if record_fingerprint == fingerprint or record_fingerprint == '-' then
    return {'duplicate', record_job}
  end
  return {'mismatch'}
end

-- Returns the waiting job of this group, and its bytes; nil if there is none. A job past its
-- deadline ends here: if no worker has ended it yet, the new request would end with it.
local function waiting_job_of_group(group_key)
  local id = redis.call('GET', group_key)
  if not id then return nil end
  local values = redis.call('HMGET', shard_key('j:' .. id), 'state', 'bytes', 'exp')
  if values[1] ~= 'queued' or not queue_position(id) then return nil end
  if values[3] and tonumber(values[3]) <= NOW_MS then
    return expire_job(id, tonumber(values[2] or '0'))
  end
  return id, tonumber(values[2] or '0')
end

-- Adds the record of a merged request to the job, so that it lives as long as the job's own record.
-- Beyond MAX_JOB_RECORDS it lives for its own TTL only: the job's fields are bounded.
local function attach_record(id, record_key, fingerprint, ttl_ms, owner)
  local job_key = shard_key('j:' .. id)
  local records = redis.call('HGET', job_key, 'record') or ''
  local _, record_count = string.gsub(records, '%S+ %d+', '')
  if record_count < MAX_JOB_RECORDS then
    local record_name = string.sub(record_key, #SHARD_PREFIX + 3, -#LOCK_NAME - 2)
      .. ' ' .. integer(NOW_MS + ttl_ms)
    redis.call('HSET', job_key,
      'record', records == '' and record_name or records .. ' ' .. record_name)
    -- The end of a job with `call` also extends its records.
    redis.call('HSETNX', job_key, 'call', '-')
    ttl_ms = math.max(ttl_ms, PENDING_RECORD_TTL_MS)
  end
  put_record(record_key, id .. ' ' .. fingerprint, ttl_ms, owner)
end

-- Returns true if the job fits in the shard without the reserve, which is 1 / divisor of it. A job
-- that replaces another one needs room only for its additional bytes.
local function fits_outside_reserve(divisor, job_count, used_bytes, extra_bytes, old_bytes, terms)
  local function without_reserve(limit, minimum)
    return limit < minimum and limit or limit - math.floor(limit / divisor)
  end
  return (old_bytes or job_count < without_reserve(terms[10], MIN_RESERVED_JOBS))
    and (
      extra_bytes <= 0
      or used_bytes + extra_bytes <= without_reserve(terms[11], MIN_RESERVED_BYTES)
    )
end

-- Returns true if the job fits into the limits of its lock and its shard; the number of jobs in the
-- queue; true if the job needs the reserve. `old_bytes` is the size of a job that it replaces.
local function fits_shard(owner, bytes, old_bytes, terms, job_count, used_bytes)
  local delayed_counts =
    redis.call('HMGET', shard_key('lates'), 'n' .. LOCK_NAME, 'b' .. LOCK_NAME)
  local replaced_count, extra_bytes, queue_length =
    old_bytes and 1 or 0,
    bytes - (old_bytes or 0),
    redis.call('ZCARD', JOBS)
  local lock_jobs = queue_length + tonumber(delayed_counts[1] or '0') - replaced_count
  local lock_bytes = tonumber(redis.call('HGET', QUEUE_META, 'bytes') or '0')
    + tonumber(delayed_counts[2] or '0')
    + extra_bytes
  local fits = job_count - replaced_count < terms[10]
    and used_bytes + extra_bytes <= terms[11]
    and lock_jobs < terms[8]
    and lock_bytes <= terms[9]
  if
    not fits
    or fits_outside_reserve(RESERVE_DIVISOR, job_count, used_bytes, extra_bytes, old_bytes, terms)
  then
    return fits, queue_length
  end
  return lock_jobs < SHORT_QUEUE_JOBS
    and (lock_jobs == 0 or lock_bytes <= terms[11] / SHORT_QUEUE_BYTES_DIVISOR)
    and (
      owner ~= ''
      or fits_outside_reserve(
        HALF_RESERVE_DIVISOR,
        job_count,
        used_bytes,
        extra_bytes,
        old_bytes,
        terms
      )
    ),
    queue_length,
    true
end

-- Returns true if the owner may have the job, and may use the reserve if the job needs it. The
-- owner's counts may include jobs with vanished keys. Such a job stays counted after its end,
-- because its owner is unknown then. At a limit, OWNER_SAMPLE_SIZE of the jobs are checked.
local function fits_owner(owner, bytes, old_bytes, terms, needs_reserve)
  if owner == '' then return true end
  local owner_key = shard_key('o:' .. owner)
  local function fits()
    local job_count, used_bytes =
      math.max(redis.call('HLEN', owner_key) - 1, 0),
      tonumber(redis.call('HGET', owner_key, '') or '0')
    job_count, used_bytes =
      job_count - (old_bytes and 1 or 0),
      used_bytes + bytes - (old_bytes or 0)
    if needs_reserve
      and (
        job_count >= SMALL_OWNER_JOBS
        or job_count > 0 and used_bytes > terms[11] / SMALL_OWNER_BYTES_DIVISOR
      )
    then
      return false
    end
    return job_count < terms[12] and used_bytes <= terms[13]
  end
  if fits() then return true end
  for _, id in ipairs(redis.call('HRANDFIELD', owner_key, OWNER_SAMPLE_SIZE)) do
    local state = id == '' or redis.call('HGET', shard_key('j:' .. id), 'state')
    if id ~= '' and state ~= 'queued' and state ~= 'running' then uncount_for_owner(owner, id) end
  end
  return fits()
end

local function store_job(
  id,
  job_key,
  request_key,
  envelope,
  bytes,
  owner,
  route,
  record_key,
  webhook,
  terms,
  sequence
)
  local fields = {
    'state', 'queued', 'lock', LOCK_NAME, 'seq', integer(sequence), 'bytes', bytes,
    'at', integer(NOW_US), 'max', terms[2]
  }
  local function add_field(field, value)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  if terms[1] == 1 then add_field('again', 1) end
  if terms[3] == 1 then add_field('skip', 1) end
  if owner ~= '' then add_field('owner', owner) end
  if route ~= '' then add_field('route', route) end
  if record_key then
    add_field('record', string.sub(record_key, #SHARD_PREFIX + 3, -#LOCK_NAME - 2)
      .. ' ' .. integer(NOW_MS + terms[7]))
  end
  if terms[6] > 0 then
    add_field('exp', integer(NOW_MS + terms[6]))
    schedule_in_index(shard_key('exp'), id, NOW_MS + terms[6])
  end
  if webhook ~= '' then
    local header_end = string.find(webhook, '\n', 1, true)
    add_field('call', string.sub(webhook, 1, header_end - 1))
    redis.call('SET', shard_key('t:' .. id), string.sub(webhook, header_end + 1))
  elseif record_key then
    -- As in `attach_record`.
    add_field('call', '-')
  end
  redis.call('HSET', job_key, unpack(fields))
  redis.call('SET', request_key, envelope)
end

-- Returns true if a worker watches the shard, or is about to: a worker that leaves a shard to live
-- peers keeps it watched until they have had time to take it.
local function has_worker()
  local deadline_ms = string.match(redis.call('GET', SHARD_WATCH) or '', '^(%d+):')
  return deadline_ms and tonumber(deadline_ms) > NOW_MS
end

-- Returns the numbers of the terms. The last result is kept: most jobs of a batch have the same
-- terms.
local TERMS_PATTERN = '^%l*' .. string.rep(' (%d+)', 15) .. '$'
local parsed_text, parsed_terms
local function parse_terms(terms_text)
  if terms_text ~= parsed_text then
    parsed_text, parsed_terms = terms_text, {string.match(terms_text, TERMS_PATTERN)}
    for i, text in ipairs(parsed_terms) do parsed_terms[i] = tonumber(text) end
  end
  return parsed_terms
end

local function enqueue_job(
  id,
  envelope,
  terms_text,
  record_key,
  fingerprint,
  owner,
  route,
  merge_terms,
  webhook
)
  local job_key, request_key, terms =
    shard_key('j:' .. id),
    shard_key('b:' .. id),
    parse_terms(terms_text)
  local previous = previous_outcome(id, job_key, record_key, fingerprint, merge_terms)
  if previous then return previous end
  if terms[4] == 1 and not has_worker() then return {'no_worker'} end
  local group_key, old_id, old_bytes
  if merge_terms ~= '' then
    group_key = shard_key('k:' .. string.sub(merge_terms, 2) .. ':' .. LOCK_NAME)
    old_id, old_bytes = waiting_job_of_group(group_key)
    if old_id and string.sub(merge_terms, 1, 1) == 'f' then
      local wait_ms = fingerprint ~= '' and ms_until_record_slot(owner, terms[15])
      if wait_ms then return {'too_many_records', integer(wait_ms)} end
      redis.call('SET', shard_key('m:' .. id), old_id, 'PX', MERGE_MARK_TTL_MS)
      if fingerprint ~= '' then
        attach_record(old_id, record_key, fingerprint, terms[7], owner)
      end
      return {'merged', old_id}
    end
  end
  local bytes = #envelope + #webhook - (string.find(webhook, '\n', 1, true) or 0)
  local shard_counts = redis.call('HMGET', SHARD_META, 'jobs', 'bytes', 'seq')
  local job_count, used_bytes =
    tonumber(shard_counts[1] or '0'),
    tonumber(shard_counts[2] or '0')
  local fits, queue_length, needs_reserve =
    fits_shard(owner, bytes, old_bytes, terms, job_count, used_bytes)
  if not fits or not fits_owner(owner, bytes, old_bytes, terms, needs_reserve) then
    return {'full'}
  end
  local wait_ms = fingerprint ~= '' and ms_until_record_slot(owner, terms[15])
  if wait_ms then return {'too_many_records', integer(wait_ms)} end

  -- As `next_sequence`, but written together with the counts: a command is a tenth of the cost of
  -- an enqueue.
  local sequence = math.max(tonumber(shard_counts[3] or '0') + 1, NOW_US)
  redis.call('HSET', SHARD_META, 'jobs', integer(job_count + 1),
    'bytes', integer(used_bytes + bytes), 'seq', integer(sequence), 'keep', integer(terms[14]))
  store_job(
    id,
    job_key,
    request_key,
    envelope,
    bytes,
    owner,
    route,
    record_key,
    webhook,
    terms,
    sequence
  )
  count_for_owner(owner, id, bytes)
  if fingerprint ~= '' then
    put_record(
      record_key,
      id .. ' ' .. fingerprint,
      math.max(terms[7], PENDING_RECORD_TTL_MS),
      owner
    )
  end
  if group_key then
    redis.call('SET', group_key, id, 'PX', integer(GROUP_TTL_MS + terms[5]))
  end
  if terms[5] > 0 then
    -- Rounded up, so that the job never runs early.
    add_delayed_job(id, math.ceil(NOW_US / 1000) + terms[5], bytes)
  else
    join_queue(id, sequence, bytes)
  end
  if old_id then
    end_waiting_job(old_id, old_bytes, 'cancelled', 'superseded', STATUS_RETENTION_MS, id)
    return {'stored', queue_position(id) or 1}
  end
  -- The newest sequence is the last of the queue.
  return {'stored', terms[5] > 0 and 0 or queue_length + 1}
end

local SERVER_ERRORS = {'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}
local results, key_index, arg_index = {}, 1, 0
while ARGV[arg_index + 1] do
  local id, envelope, terms_text = ARGV[arg_index + 1], ARGV[arg_index + 2], ARGV[arg_index + 3]
  local flags, record_key, fingerprint, owner, route, merge_terms, webhook =
    string.match(terms_text, '^%l*'), nil, '', '', '', '', ''
  select_lock_by_key(KEYS[key_index])
  key_index, arg_index = key_index + 1, arg_index + 3
  local function next_arg()
    arg_index = arg_index + 1
    return ARGV[arg_index]
  end
  for i = 1, #flags do
    local flag = string.sub(flags, i, i)
    if flag == 'p' then
      record_key, fingerprint, key_index = KEYS[key_index], next_arg(), key_index + 1
    elseif flag == 'o' then
      owner = next_arg()
    elseif flag == 'r' then
      route = next_arg()
    elseif flag == 'c' then
      webhook = next_arg()
    else
      merge_terms = flag .. next_arg()
    end
  end
  local succeeded, answer = pcall(
    enqueue_job,
    id,
    envelope,
    terms_text,
    record_key,
    fingerprint,
    owner,
    route,
    merge_terms,
    webhook
  )
  if not succeeded then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- An error of the server concerns every job, so it is the reply to the whole call.
    for _, code in ipairs(SERVER_ERRORS) do
      local start = string.find(text, code, 1, true)
      if start then return redis.error_reply(string.sub(text, start)) end
    end
    answer = {'error', text}
  end
  results[#results + 1] = answer
end
return results
