-- Indexes, books and tombstones of ended jobs, and idempotency records. Stands behind wait_queue.lua, before job_common.lua, whose
-- comment lists the other keys.
--
-- done, dead     ZSET    ended job -> when it is forgotten, us
-- <kind>bytes    HASH    its job -> '<bytes kept> <stamp> <owner>', the owner only if there is one
-- <kind>by       ZSET    '<length of owner>:<owner>:<stamp>:<job>' at score 0: the jobs of one owner in a row, the one that
--                        is forgotten first in front. The stamp is the job's first score, 16 digits
-- <kind>owners   ZSET    owner -> the sum of its bytes; the common owner '' has the rest: f's <kind>_bytes - <kind>_owned
-- e:<owner>      ZSET    tombstone -> when it ends, ms
-- n:<owner>      ZSET    idempotency record '<record>:<lock>' -> when it ends, ms
-- A tombstone is a j with `gone` that has kept state, lock, owner, at, ended and reason alone.

-- Most dead jobs that a shard keeps: one that always fails must not fill the server.
local MAX_DEAD_JOBS = 10000
local FILED_COUNT = 0
-- Most bytes that a shard keeps of done jobs, and of dead ones, where no layer has said it.
local DEFAULT_MAX_BYTES = 16777216
-- Bytes of an ended job besides its request or its response, about: its facts, and its entries here and there.
local ENDED_JOB_OVERHEAD = 512
-- Most ended jobs that one step evicts; the rest is left to the next ones.
local MAX_EVICTIONS = 96
-- Most tombstones of one owner in a shard, about 300 bytes each.
local MAX_TOMBSTONES = 16384

-- How long it is known of a job at least that it was stored, ms.
local LATE_COPY_WINDOW_MS = 60000

-- Takes up to SCAN entries out of an index whose time, ms, is over.
local function drop_expired(index)
  local expired = redis.call('ZRANGEBYSCORE', index, '-inf', integer(NOW_MS), 'LIMIT', '0', SCAN_LIMIT)
  if #expired > 0 then redis.call('ZREM', index, unpack(expired)) end
end

-- An index of records ends with the last of them, which may have got less time than it had.
local function expire_with_last(index)
  local latest_ms = redis.call('ZRANGE', index, '-1', '-1', 'WITHSCORES')[2]
  if latest_ms then redis.call('PEXPIRE', index, integer(math.max(tonumber(latest_ms) - NOW_MS, 1))) end
end

-- Counts an idempotency record for its owner, until it ends.
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

-- Ms until the first record of this owner ends, if it has as many as it may; nil if there is room for another one.
local function ms_until_record_slot(owner, max_records)
  local index, after_now = shard_key('n:' .. owner), '(' .. integer(NOW_MS)
  if redis.call('ZCOUNT', index, after_now, '+inf') < max_records then return nil end
  local earliest = redis.call('ZRANGEBYSCORE', index, after_now, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  return earliest[2] and tonumber(earliest[2]) - NOW_MS or 1
end

-- Ms for which it must stay known of a job that it was stored: a copy of the call that stored it may come yet.
local function min_tombstone_ms(accepted_us)
  return math.min(LATE_COPY_WINDOW_MS - math.floor((NOW_US - tonumber(accepted_us or '0')) / 1000), LATE_COPY_WINDOW_MS)
end

-- Counts a tombstone for its owner. Beyond TOMBS the one that ends first goes, but for as long as it must be known.
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
  if remaining_ms > 0 then redis.call('PEXPIRE', shard_key('j:' .. first_id), integer(remaining_ms)) else redis.call('UNLINK', shard_key('j:' .. first_id)) end
end

-- Leaves a tombstone of an ended job that is in no index any more, for the rest of its time: a client that finds nothing
-- would take the request for one that was never accepted. Returns how many keys there were of the job.
local function leave_tombstone(id)
  local job_key = shard_key('j:' .. id)
  local values, remaining_ms = redis.call('HMGET', job_key, 'state', 'lock', 'at', 'ended', 'owner', 'reason'), redis.call('PTTL', job_key)
  -- An index that is wrong takes nothing from a job that waits.
  if values[1] == 'queued' or values[1] == 'running' then return 0 end
  local removed_count = redis.call('UNLINK', job_key, shard_key('b:' .. id), shard_key('r:' .. id), shard_key('t:' .. id))
  remaining_ms = math.max(remaining_ms, min_tombstone_ms(values[3]))
  if remaining_ms <= 0 then return removed_count end
  if not values[1] then
    if values[3] then redis.call('HSET', job_key, 'at', values[3]) end
  else
    redis.call('HSET', job_key, 'gone', '1', 'state', values[1], 'lock', values[2] or '', 'at', values[3] or '0', 'ended', values[4] or '0')
    if (values[5] or '') ~= '' then redis.call('HSET', job_key, 'owner', values[5]) end
    if (values[6] or '') ~= '' then redis.call('HSET', job_key, 'reason', values[6]) end
    index_tombstone(id, remaining_ms, values[5] or '')
  end
  redis.call('PEXPIRE', job_key, integer(remaining_ms))
  return removed_count
end

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

-- Takes jobs that have left an index out of its books. Returns the bytes that were kept of them.
local function remove_from_ledger(kind, ids)
  local total_bytes, owned_bytes = 0, 0
  for i, entry in ipairs(redis.call('HMGET', shard_key(kind .. 'bytes'), unpack(ids))) do
    local size, stamp, owner = string.match(entry or '', '^(%d+) ?(%d*) ?(.*)$')
    if size then
      total_bytes = total_bytes + tonumber(size)
      redis.call('ZREM', shard_key(kind .. 'by'), owner_prefix(owner) .. stamp .. ':' .. ids[i])
      if owner ~= '' then
        owned_bytes = owned_bytes + tonumber(size)
        local remaining_bytes = redis.call('ZINCRBY', shard_key(kind .. 'owners'), integer(0 - tonumber(size)), owner)
        if tonumber(remaining_bytes) <= 0 then redis.call('ZREM', shard_key(kind .. 'owners'), owner) end
      end
    end
  end
  redis.call('HDEL', shard_key(kind .. 'bytes'), unpack(ids))
  if owned_bytes > 0 and redis.call('HINCRBY', SHARD_META, kind .. '_owned', integer(0 - owned_bytes)) < 0 then
    redis.call('HSET', SHARD_META, kind .. '_owned', '0')
  end
  return total_bytes
end

-- Begins the books of an index anew: those that it had are void, or have vanished.
local function reset_ledger(kind)
  redis.call('UNLINK', shard_key(kind .. 'bytes'), shard_key(kind .. 'by'), shard_key(kind .. 'owners'))
  redis.call('HDEL', SHARD_META, kind .. '_owned')
end

-- Takes an ended job out of its index by hand, if it is there.
local function remove_from_index(kind, id)
  if redis.call('ZREM', shard_key(kind), id) == 0 then return end
  redis.call('HINCRBY', SHARD_META, kind .. '_out', 1)
  redis.call('HINCRBY', SHARD_META, kind .. '_bytes', integer(0 - remove_from_ledger(kind, {id})))
end

-- The owner whose oldest job makes room: `owner`, which has filed the newest, if it has more than an equal share of
-- `most`; else the one that has the most. So nobody drives out others by what is its own.
local function largest_owner(kind, owner, total_bytes, max_bytes)
  local owners_index = shard_key(kind .. 'owners')
  local ownerless_bytes = total_bytes - tonumber(redis.call('HGET', SHARD_META, kind .. '_owned') or '0')
  local owner_count = redis.call('ZCARD', owners_index) + (ownerless_bytes > 0 and 1 or 0)
  local owner_bytes = owner == '' and ownerless_bytes or tonumber(redis.call('ZSCORE', owners_index, owner) or '0')
  if owner_bytes * owner_count > max_bytes then return owner end
  local largest = redis.call('ZRANGE', owners_index, '-1', '-1', 'WITHSCORES')
  if not largest[1] or ownerless_bytes >= tonumber(largest[2]) then return '' end
  return largest[1]
end

-- The job that makes room for the newest, which stays: the oldest of the largest owner, or, if that has no other one, of
-- all; nil if there is none.
local function pick_victim(kind, newest, owner, total_bytes, max_bytes)
  local prefix = owner_prefix(largest_owner(kind, owner, total_bytes, max_bytes))
  local entries = redis.call('ZRANGEBYLEX', shard_key(kind .. 'by'), '[' .. prefix, '[' .. prefix .. '\255', 'LIMIT', '0', '2')
  for _, entry in ipairs(entries) do
    local id = string.sub(entry, -#newest)
    if id ~= newest then return id, entry end
  end
  for _, id in ipairs(redis.call('ZRANGE', shard_key(kind), '0', '1')) do
    if id ~= newest then return id end
  end
  return nil
end

-- Evicts an ended job: its tombstone is left. Returns the bytes that were kept of it.
local function evict_job(kind, id, entry)
  redis.call('ZREM', shard_key(kind), id)
  leave_tombstone(id)
  local bytes = remove_from_ledger(kind, {id})
  if entry then redis.call('ZREM', shard_key(kind .. 'by'), entry) end
  return bytes
end

-- Forgets ended jobs whose keys a TTL has taken away, and evicts a dead one beyond the cap. The newest stays also where
-- its time ends before that of all others: its end has yet to be told. Returns the bytes of that.
local function trim_index(kind, newest, owner, total_bytes)
  local index = shard_key(kind)
  local expired = redis.call('ZRANGEBYSCORE', index, '-inf', integer(NOW_US), 'LIMIT', 0, SCAN_LIMIT)
  local bytes = 0
  if #expired > 0 then
    redis.call('ZREM', index, unpack(expired))
    bytes = remove_from_ledger(kind, expired)
  end
  if kind == 'dead' and redis.call('ZCARD', index) > MAX_DEAD_JOBS then
    local id, entry = pick_victim(kind, newest, owner, total_bytes - bytes, total_bytes - bytes)
    if id then bytes = bytes + evict_job(kind, id, entry) end
  end
  return bytes
end

-- Evicts jobs for the newest, of `size`, until no more than `most` of the bytes are left. Returns the sum that is left.
local function evict_until_fits(kind, newest, owner, stamp, size, total_bytes, max_bytes)
  for _ = 1, MAX_EVICTIONS do
    if total_bytes <= max_bytes then return total_bytes end
    local id, entry = pick_victim(kind, newest, owner, total_bytes, max_bytes)
    if not id then return size end
    if redis.call('HEXISTS', shard_key(kind .. 'bytes'), id) == 0 then
      -- The books have vanished, and begin anew.
      reset_ledger(kind)
      add_to_ledger(kind, newest, owner, stamp, size)
      return size
    end
    total_bytes = total_bytes - evict_job(kind, id, entry)
  end
  return total_bytes
end

-- Puts an ended job into an index for ms, as the n-th, with the bytes that are kept of it. Scores are microseconds,
-- each its own, so that a list can go on behind any of them. The index lives a little longer than it must: most jobs
-- need not prolong it then. `sum`, `most`: the bytes there are, and may be, as f says. Returns the new sum, which is
-- the caller's to write down.
local function add_to_index(kind, id, retention_ms, filed_count, bytes, owner, total_bytes, max_bytes)
  FILED_COUNT = FILED_COUNT + 1
  local index, size, stamp = shard_key(kind), ENDED_JOB_OVERHEAD + bytes, string.format('%016.0f', NOW_US + retention_ms * 1000 + FILED_COUNT)
  redis.call('ZADD', index, stamp, id)
  local index_ttl_ms = redis.call('PTTL', index)
  total_bytes = tonumber(total_bytes or '0')
  if index_ttl_ms == -1 then
    reset_ledger(kind)
    total_bytes = 0
  end
  add_to_ledger(kind, id, owner, stamp, size)
  total_bytes = total_bytes + size
  local ledger_keys = {shard_key(kind .. 'bytes'), shard_key(kind .. 'by'), shard_key(kind .. 'owners')}
  if index_ttl_ms < retention_ms + 1 then
    index_ttl_ms = math.floor(retention_ms + retention_ms / 8 + 1)
    redis.call('PEXPIRE', index, index_ttl_ms)
    for _, key in ipairs(ledger_keys) do redis.call('PEXPIRE', key, index_ttl_ms) end
  elseif filed_count % 16 == 0 then
    -- Had they vanished, they would be without an end.
    for _, key in ipairs(ledger_keys) do redis.call('PEXPIRE', key, index_ttl_ms) end
  elseif owner ~= '' then
    extend_ttl(ledger_keys[3], index_ttl_ms)
  end
  if filed_count % 16 == 0 or kind == 'dead' then total_bytes = total_bytes - trim_index(kind, id, owner, total_bytes) end
  max_bytes = tonumber(max_bytes or DEFAULT_MAX_BYTES)
  if total_bytes > max_bytes then total_bytes = evict_until_fits(kind, id, owner, stamp, size, total_bytes, max_bytes) end
  return integer(math.max(total_bytes, 0))
end

-- As file, as one more, for those who count nothing else.
local function add_to_index_and_count(kind, id, retention_ms, bytes, filed_count, owner)
  local values = redis.call('HMGET', SHARD_META, 'keep', kind .. '_bytes')
  local total_bytes = add_to_index(kind, id, retention_ms, filed_count, bytes, owner, values[2] or nil, values[1] or nil)
  redis.call('HSET', SHARD_META, kind .. '_bytes', total_bytes)
end
