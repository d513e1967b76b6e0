-- Prelude of the scripts about jobs: indexes, ledgers and tombstones of ended jobs, and idempotency
-- records.
--
-- Included by the same scripts as pending_job_bookkeeping.lua, which lists the other keys: after
-- wait_queue.lua, before pending_job_bookkeeping.lua. Expects that a lock has been selected.
--
-- Keys of a shard. <kind> is `done` or `dead`; its ledger is the three keys that begin with it.
--   <kind>        ZSET  ended job -> end of its retention, us; unique
--   <kind>bytes   HASH  job -> '<bytes retained> <stamp> <owner>', without the owner if it is ''
--   <kind>by      ZSET  '<length of owner>:<owner>:<stamp>:<job>' -> 0: jobs by owner, then by
--                       stamp
--   <kind>owners  ZSET  owner -> sum of its bytes. The jobs without an owner count as one owner,
--                       '', which has the rest: <kind>_bytes - <kind>_owned of f.
--   e:<owner>     ZSET  tombstone -> its end, ms
--   n:<owner>     ZSET  idempotency record, '<record>:<lock>' -> its end, ms
-- The stamp is the job's first score, with 16 digits.
-- A tombstone is a hash j with the field `gone`, and of the job's fields only state, lock, owner,
-- at, ended and reason.

-- Maximum number of dead jobs in a shard: a request that always fails must not fill the server.
local MAX_DEAD_JOBS = 10000
-- Number of jobs that this script call has added to an index; it makes their scores unique.
local INDEXED_COUNT = 0
-- Limit of the bytes of done jobs in a shard, and of dead ones, if no layer has set `keep`.
local DEFAULT_MAX_BYTES = 16777216
-- Approximate bytes of an ended job besides its request or response: its fields and index entries.
local ENDED_JOB_OVERHEAD = 512
-- Maximum number of jobs evicted to make room for one job; the next ones evict the rest.
local MAX_EVICTIONS = 96
-- Maximum number of tombstones of an owner in a shard, about 300 bytes each.
local MAX_TOMBSTONES = 16384

-- Minimum time, after its acceptance, for which a job's id stays known, ms.
local LATE_COPY_WINDOW_MS = 60000

-- Removes up to SCAN_LIMIT entries of an index with a score, ms, in the past.
local function drop_expired(index)
  local expired =
    redis.call('ZRANGEBYSCORE', index, '-inf', integer(NOW_MS), 'LIMIT', '0', SCAN_LIMIT)
  if #expired > 0 then redis.call('ZREM', index, unpack(expired)) end
end

-- Sets the TTL of an index of records to the end of its last record, which may be earlier than it
-- was.
local function expire_with_last(index)
  local latest_ms = redis.call('ZRANGE', index, '-1', '-1', 'WITHSCORES')[2]
  if latest_ms then
    redis.call('PEXPIRE', index, integer(math.max(tonumber(latest_ms) - NOW_MS, 1)))
  end
end

-- Counts an idempotency record for its owner until the record ends.
local function index_record(record_key, ttl_ms, owner)
  local index = shard_key('n:' .. owner)
  drop_expired(index)
  redis.call('ZADD', index, integer(NOW_MS + ttl_ms), string.sub(record_key, #SHARD_PREFIX + 3))
  expire_with_last(index)
end

local function put_record(record_key, record, ttl_ms, owner)
  redis.call('SET', record_key, record, 'PX', integer(ttl_ms))
  index_record(record_key, ttl_ms, owner)
end

local function extend_record(record_key, ttl_ms, owner)
  redis.call('PEXPIRE', record_key, integer(ttl_ms))
  index_record(record_key, ttl_ms, owner)
end

local function drop_record(record_key, owner)
  redis.call('DEL', record_key)
  redis.call('ZREM', shard_key('n:' .. owner), string.sub(record_key, #SHARD_PREFIX + 3))
  expire_with_last(shard_key('n:' .. owner))
end

-- Returns the time until the owner's first record ends, ms, if the owner has `max_records`; nil if
-- it may have another one.
local function ms_until_record_slot(owner, max_records)
  local index, after_now = shard_key('n:' .. owner), '(' .. integer(NOW_MS)
  if redis.call('ZCOUNT', index, after_now, '+inf') < max_records then return nil end
  local earliest =
    redis.call('ZRANGEBYSCORE', index, after_now, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  return earliest[2] and tonumber(earliest[2]) - NOW_MS or 1
end

-- Returns the time for which the job's id must stay known, ms: a late copy of the call that stored
-- it may still arrive.
local function min_tombstone_ms(accepted_us)
  return math.min(
    LATE_COPY_WINDOW_MS - math.floor((NOW_US - tonumber(accepted_us or '0')) / 1000),
    LATE_COPY_WINDOW_MS
  )
end

-- Counts a tombstone for its owner. Beyond MAX_TOMBSTONES, the first to expire is removed, or kept
-- for its minimum time only.
local function index_tombstone(id, ttl_ms, owner)
  local index = shard_key('e:' .. owner)
  drop_expired(index)
  redis.call('ZADD', index, integer(NOW_MS + ttl_ms), id)
  extend_ttl(index, ttl_ms)
  if redis.call('ZCARD', index) <= MAX_TOMBSTONES then return end
  local first_id = redis.call('ZRANGE', index, '0', '0')[1]
  local values = redis.call('HMGET', shard_key('j:' .. first_id), 'gone', 'at')
  redis.call('ZREM', index, first_id)
  if not values[1] then return end
  local remaining_ms = min_tombstone_ms(values[2])
  if remaining_ms > 0 then
    redis.call('PEXPIRE', shard_key('j:' .. first_id), integer(remaining_ms))
  else
    redis.call('UNLINK', shard_key('j:' .. first_id))
  end
end

-- Replaces an ended job by a tombstone for the rest of its retention. A client that finds nothing
-- would conclude that the request was never accepted. The caller has removed the job from its
-- index. Returns the number of keys that the job had.
local function leave_tombstone(id)
  local job_key = shard_key('j:' .. id)
  local values, remaining_ms =
    redis.call('HMGET', job_key, 'state', 'lock', 'at', 'ended', 'owner', 'reason'),
    redis.call('PTTL', job_key)
  -- A wrong index entry must not delete a pending job.
  if values[1] == 'queued' or values[1] == 'running' then return 0 end
  local removed_count = redis.call(
    'UNLINK',
    job_key,
    shard_key('b:' .. id),
    shard_key('r:' .. id),
    shard_key('t:' .. id)
  )
  remaining_ms = math.max(remaining_ms, min_tombstone_ms(values[3]))
  if remaining_ms <= 0 then return removed_count end
  if not values[1] then
    if values[3] then redis.call('HSET', job_key, 'at', values[3]) end
  else
    redis.call('HSET', job_key, 'gone', '1', 'state', values[1], 'lock', values[2] or '',
      'at', values[3] or '0', 'ended', values[4] or '0')
    if (values[5] or '') ~= '' then redis.call('HSET', job_key, 'owner', values[5]) end
    if (values[6] or '') ~= '' then redis.call('HSET', job_key, 'reason', values[6]) end
    index_tombstone(id, remaining_ms, values[5] or '')
  end
  redis.call('PEXPIRE', job_key, integer(remaining_ms))
  return removed_count
end

-- Returns the prefix of the owner's entries in <kind>by. The length makes it unambiguous.
local function owner_prefix(owner) return #owner .. ':' .. owner .. ':' end

local function add_to_ledger(kind, id, owner, stamp, size)
  local entry = integer(size) .. ' ' .. stamp
  if owner ~= '' then
    entry = entry .. ' ' .. owner
    redis.call('ZINCRBY', shard_key(kind .. 'owners'), integer(size), owner)
    redis.call('HINCRBY', SHARD_META, kind .. '_owned', integer(size))
  end
  redis.call('HSET', shard_key(kind .. 'bytes'), id, entry)
  redis.call('ZADD', shard_key(kind .. 'by'), '0', owner_prefix(owner) .. stamp .. ':' .. id)
end

-- Removes jobs from the ledger of an index that they have left. Returns their retained bytes.
local function remove_from_ledger(kind, ids)
  local total_bytes, owned_bytes = 0, 0
  for i, entry in ipairs(redis.call('HMGET', shard_key(kind .. 'bytes'), unpack(ids))) do
    local size, stamp, owner = string.match(entry or '', '^(%d+) ?(%d*) ?(.*)$')
    if size then
      total_bytes = total_bytes + tonumber(size)
      redis.call('ZREM', shard_key(kind .. 'by'), owner_prefix(owner) .. stamp .. ':' .. ids[i])
      if owner ~= '' then
        owned_bytes = owned_bytes + tonumber(size)
        local remaining_bytes =
          redis.call('ZINCRBY', shard_key(kind .. 'owners'), integer(0 - tonumber(size)), owner)
        if tonumber(remaining_bytes) <= 0 then
          redis.call('ZREM', shard_key(kind .. 'owners'), owner)
        end
      end
    end
  end
  redis.call('HDEL', shard_key(kind .. 'bytes'), unpack(ids))
  if owned_bytes > 0
    and redis.call('HINCRBY', SHARD_META, kind .. '_owned', integer(0 - owned_bytes)) < 0
  then
    redis.call('HSET', SHARD_META, kind .. '_owned', '0')
  end
  return total_bytes
end

-- Empties the ledger of an index, if the ledger is void or has vanished.
local function reset_ledger(kind)
  redis.call(
    'UNLINK',
    shard_key(kind .. 'bytes'),
    shard_key(kind .. 'by'),
    shard_key(kind .. 'owners')
  )
  redis.call('HDEL', SHARD_META, kind .. '_owned')
end

-- Removes an ended job from its index for a purge or a redrive, if it is there.
local function remove_from_index(kind, id)
  if redis.call('ZREM', shard_key(kind), id) == 0 then return end
  redis.call('HINCRBY', SHARD_META, kind .. '_out', 1)
  redis.call('HINCRBY', SHARD_META, kind .. '_bytes', integer(0 - remove_from_ledger(kind, {id})))
end

-- Returns the owner to evict from: `owner`, the owner of the newest job, if it has more than an
-- equal share of `max_bytes`; otherwise the owner with the most bytes. An owner therefore cannot
-- displace the jobs of others with its own.
local function largest_owner(kind, owner, total_bytes, max_bytes)
  local owners_index = shard_key(kind .. 'owners')
  local ownerless_bytes =
    total_bytes - tonumber(redis.call('HGET', SHARD_META, kind .. '_owned') or '0')
  local owner_count = redis.call('ZCARD', owners_index) + (ownerless_bytes > 0 and 1 or 0)
  local owner_bytes = owner == '' and ownerless_bytes
    or tonumber(redis.call('ZSCORE', owners_index, owner) or '0')
  if owner_bytes * owner_count > max_bytes then return owner end
  local largest = redis.call('ZRANGE', owners_index, '-1', '-1', 'WITHSCORES')
  if not largest[1] or ownerless_bytes >= tonumber(largest[2]) then return '' end
  return largest[1]
end

-- Returns the job to evict for the newest one, which stays: the first to expire of `largest_owner`,
-- or of all if that owner has no other job; nil if there is none. The second value is its entry in
-- <kind>by, if that was read.
local function choose_eviction(kind, newest, owner, total_bytes, max_bytes)
  local prefix = owner_prefix(largest_owner(kind, owner, total_bytes, max_bytes))
  local entries = redis.call('ZRANGEBYLEX', shard_key(kind .. 'by'), '[' .. prefix,
    '[' .. prefix .. '\255', 'LIMIT', '0', '2')
  for _, entry in ipairs(entries) do
    local id = string.sub(entry, -#newest)
    if id ~= newest then return id, entry end
  end
  for _, id in ipairs(redis.call('ZRANGE', shard_key(kind), '0', '1')) do
    if id ~= newest then return id end
  end
  return nil
end

-- Evicts an ended job, which leaves a tombstone. Returns its retained bytes.
local function evict_job(kind, id, entry)
  redis.call('ZREM', shard_key(kind), id)
  leave_tombstone(id)
  local bytes = remove_from_ledger(kind, {id})
  if entry then redis.call('ZREM', shard_key(kind .. 'by'), entry) end
  return bytes
end

-- Removes ended jobs with expired keys, and evicts a dead one beyond MAX_DEAD_JOBS. The
-- newest job is not evicted even if it is the first to expire: its end has yet to be reported.
-- Returns the retained bytes of the removed jobs.
local function trim_index(kind, newest, owner, total_bytes)
  local index = shard_key(kind)
  local expired =
    redis.call('ZRANGEBYSCORE', index, '-inf', integer(NOW_US), 'LIMIT', 0, SCAN_LIMIT)
  local bytes = 0
  if #expired > 0 then
    redis.call('ZREM', index, unpack(expired))
    bytes = remove_from_ledger(kind, expired)
  end
  if kind == 'dead' and redis.call('ZCARD', index) > MAX_DEAD_JOBS then
    local id, entry = choose_eviction(kind, newest, owner, total_bytes - bytes, total_bytes - bytes)
    if id then bytes = bytes + evict_job(kind, id, entry) end
  end
  return bytes
end

-- Evicts jobs for the newest one, of `size` bytes, until at most `max_bytes` are left, within
-- MAX_EVICTIONS. Returns the bytes that are left.
local function evict_until_fits(kind, newest, owner, stamp, size, total_bytes, max_bytes)
  for _ = 1, MAX_EVICTIONS do
    if total_bytes <= max_bytes then return total_bytes end
    local id, entry = choose_eviction(kind, newest, owner, total_bytes, max_bytes)
    if not id then return size end
    if redis.call('HEXISTS', shard_key(kind .. 'bytes'), id) == 0 then
      -- The ledger has vanished; the new one starts with the newest job.
      reset_ledger(kind)
      add_to_ledger(kind, newest, owner, stamp, size)
      return size
    end
    total_bytes = total_bytes - evict_job(kind, id, entry)
  end
  return total_bytes
end

-- Adds an ended job to an index for `retention_ms`.
--   filed_count  jobs ever added to the index, with this one
--   bytes        bytes of the job that are retained
--   total_bytes  retained bytes of the index so far, as f has them
--   max_bytes    limit of these, as f has it
-- Returns the new total, which the caller stores in f.
-- Scores are microseconds and unique, so that a listing can continue after any of them. The index
-- lives an eighth longer than the job, so that most jobs need not extend its TTL.
local function add_to_index(
  kind,
  id,
  retention_ms,
  filed_count,
  bytes,
  owner,
  total_bytes,
  max_bytes
)
  INDEXED_COUNT = INDEXED_COUNT + 1
  local index, size, stamp =
    shard_key(kind),
    ENDED_JOB_OVERHEAD + bytes,
    string.format('%016.0f', NOW_US + retention_ms * 1000 + INDEXED_COUNT)
  redis.call('ZADD', index, stamp, id)
  local index_ttl_ms = redis.call('PTTL', index)
  total_bytes = tonumber(total_bytes or '0')
  if index_ttl_ms == -1 then
    -- The index is new, so a ledger that is left is void.
    reset_ledger(kind)
    total_bytes = 0
  end
  add_to_ledger(kind, id, owner, stamp, size)
  total_bytes = total_bytes + size
  local ledger_keys =
    {shard_key(kind .. 'bytes'), shard_key(kind .. 'by'), shard_key(kind .. 'owners')}
  if index_ttl_ms < retention_ms + 1 then
    index_ttl_ms = math.floor(retention_ms + retention_ms / 8 + 1)
    redis.call('PEXPIRE', index, index_ttl_ms)
    for _, key in ipairs(ledger_keys) do redis.call('PEXPIRE', key, index_ttl_ms) end
  elseif filed_count % 16 == 0 then
    -- A ledger key that had vanished was created again without a TTL.
    for _, key in ipairs(ledger_keys) do redis.call('PEXPIRE', key, index_ttl_ms) end
  elseif owner ~= '' then
    extend_ttl(ledger_keys[3], index_ttl_ms)
  end
  if filed_count % 16 == 0 or kind == 'dead' then
    total_bytes = total_bytes - trim_index(kind, id, owner, total_bytes)
  end
  max_bytes = tonumber(max_bytes or DEFAULT_MAX_BYTES)
  if total_bytes > max_bytes then
    total_bytes = evict_until_fits(kind, id, owner, stamp, size, total_bytes, max_bytes)
  end
  return integer(math.max(total_bytes, 0))
end

-- Like `add_to_index`, but reads and stores the total itself, for callers without other counts to
-- write.
local function add_to_index_and_count(kind, id, retention_ms, bytes, filed_count, owner)
  local values = redis.call('HMGET', SHARD_META, 'keep', kind .. '_bytes')
  local total_bytes = add_to_index(
    kind,
    id,
    retention_ms,
    filed_count,
    bytes,
    owner,
    values[2] or nil,
    values[1] or nil
  )
  redis.call('HSET', SHARD_META, kind .. '_bytes', total_bytes)
end
