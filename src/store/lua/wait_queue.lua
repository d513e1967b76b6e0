-- Prelude of the scripts about locks and jobs: the wait queue of one lock.
--
-- Provides: the key names, constants and functions below, for the lock that `select_lock` or
-- `select_lock_by_key` has selected. A batch selects several locks in succession.
-- Expects: choose_publish_command.lua in front of it, and in KEYS[1] any key of the namespace.
-- Included by: lock_batch.lua, acquire_all.lua, enqueue_jobs.lua, claim_settle_batch.lua,
-- cancel_job.lua, end_job_delay.lua, purge_job_to_tombstone.lua, redrive_job.lua,
-- idempotent_run_record.lua, poll_due_locks_and_jobs.lua, inspect_lock.lua, force_release.lua, and
-- the store check (src/store/fsck).
--
-- Keys, by kind. Scripts declare few of them and derive the other names: all have the hash tag of
-- the declared key, and one declared key costs the server as much as deriving two names. (In a
-- cluster each call also declares a key that never exists, see `slot_guard_key` in key_names.rs.)
--   h      ZSET    holder or offer -> deadline, ms
--   l      HASH    park         end of the offer to a job, ms; afterwards jobs are skipped
--                  back         '<ms> <job id>' for each backoff, the latest failure first
--                  bytes        bytes of the jobs in g
--                  past         '<sequence> <ms>', see `barging_expired` in acquire.lua
--                  '@<token>'   its member of q
--   q      ZSET    queue entry of a process, '<deadline ms>:<mode>:<token>' -> sequence
--   g      ZSET    job id -> sequence, from the same counter as in q
--   due    ZSET    of the shard: lock with jobs -> time of its next poll by a worker, ms
--   f      HASH    of the shard, without TTL: last fence, last sequence, number and bytes of jobs
--   watch  STRING  of the shard, without TTL: '<deadline ms>:<node>' of the worker that watches it;
--                  '<deadline ms>:' if it is vacant and another worker should take it until then
-- `due` also covers the leases of running jobs: a lock stays in it while it has jobs, and a poll at
-- the end of the lease finds the job running and its token missing in h. A separate index of leases
-- would repeat this.
-- The deadline of `watch` is part of the value, so that a heartbeat
-- (heartbeat_and_shard_assignment.lua) sets all 64 with one MSET.
-- The name of the lock and the prefix of the channels are parsed from the name of h,
-- 'lg:1:<ns>:{<shard>}:h:<lock>', since every argument costs the server time in every call.
--
-- Tokens: '<nonce>:<node>', both hex.
-- Modes: x exclusive, s shared, p<n> at most n permits. All members of h have the same mode.
-- Members of h: 'h<token>' holder, 'o<token>' offer to a waiter, 'j<job id>' offer to a job. In the
-- modes s and p, the letter precedes the token: 'hs<token>', 'op<token>'. A member is void after
-- its deadline.
local HOLDERS, QUEUE_META, WAITERS, JOBS, DUE, SHARD_META, SHARD_WATCH, LOCK_NAME, SHARD_PREFIX
local NAMESPACE_PREFIX = string.match(KEYS[1], '^[^{]*')
local CHANNEL_PREFIX = SHARD_CHANNEL_PREFIX or NAMESPACE_PREFIX
-- Time for which an offer reserves the lock.
local OFFER_TIMEOUT_MS = 300
local MODE_TAGS = {x = '', s = 's', p = 'p'}

-- Selects a lock by its name. `shard_prefix`: start of all key names of its shard, up to the kind.
local function select_lock(shard_prefix, lock_name)
  HOLDERS, QUEUE_META, WAITERS, JOBS, LOCK_NAME =
    shard_prefix .. 'h:' .. lock_name, shard_prefix .. 'l:' .. lock_name,
    shard_prefix .. 'q:' .. lock_name, shard_prefix .. 'g:' .. lock_name, lock_name
  if shard_prefix ~= SHARD_PREFIX then
    SHARD_PREFIX, DUE, SHARD_META, SHARD_WATCH =
      shard_prefix, shard_prefix .. 'due', shard_prefix .. 'f', shard_prefix .. 'watch'
  end
end

-- Selects a lock by the name of its h.
local function select_lock_by_key(holders_key)
  local prefix_end = string.find(holders_key, '}:h:', #NAMESPACE_PREFIX, true)
  select_lock(
    string.sub(holders_key, 1, prefix_end + 1), string.sub(holders_key, prefix_end + 4)
  )
end

-- Returns the name of another key of the shard.
local function shard_key(kind) return SHARD_PREFIX .. kind end

local time = redis.call('TIME')
-- Exact: microseconds since 1970 stay below 2^53 until the year 2255.
local NOW_US = tonumber(time[1]) * 1000000 + tonumber(time[2])
local NOW_MS = math.floor(NOW_US / 1000)
-- Maximum number of entries that one script examines. It bounds the running time, not the queue.
local SCAN_LIMIT = 100

-- Formats a number that goes to a command, a whole one in two parts. Redis would format it as a
-- fraction, which costs as much as a command. (Constant arguments are written as strings.)
local function integer(number)
  if number < 0 then return string.format('%.0f', number) end
  local low = number % 1000000000
  local high = (number - low) / 1000000000
  return high > 0 and string.format('%d%09d', high, low) or string.format('%d', low)
end

-- Raises the TTL of a key to `ttl_ms`. Never shortens it; a key without a TTL gets this one.
local function extend_ttl(key, ttl_ms)
  if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, integer(ttl_ms)) end
end

-- Writes a member of h. The key expires with its latest member. `is_only`: there is no other
-- member, so the current TTL need not be read.
local function put_holder(member, ttl_ms, is_only)
  redis.call('ZADD', HOLDERS, integer(NOW_MS + ttl_ms), member)
  if is_only then
    redis.call('PEXPIRE', HOLDERS, integer(ttl_ms))
  else
    extend_ttl(HOLDERS, ttl_ms)
  end
end

-- Removes expired holders and offers. Returns the latest remaining deadline and the mode of the
-- remaining members, or nil if the lock is free; in mode x also the member. A member of mode x was
-- added after all others had been removed, so it is alone and no removal is necessary.
local function expire_holders()
  local latest = redis.call('ZRANGE', HOLDERS, '-1', '-1', 'WITHSCORES')
  if #latest == 0 then return nil end
  local mode_tag, is_live = string.match(latest[1], '^[ho]([sp])'), tonumber(latest[2]) > NOW_MS
  if is_live and not mode_tag then return tonumber(latest[2]), 'x', latest[1] end
  redis.call('ZREMRANGEBYSCORE', HOLDERS, '-inf', integer(NOW_MS))
  if not is_live then return nil end
  return tonumber(latest[2]), mode_tag
end

-- Returns true if one more holder of `mode` is admissible beside those of `held_mode` (nil: the
-- lock is free). Each caller has its own limit of permits: if limits differ, the number of holders
-- never exceeds the greatest.
local function is_admissible(mode, limit, held_mode)
  if not held_mode then return true end
  if mode ~= held_mode then return false end
  return mode == 's' or (mode == 'p' and redis.call('ZCARD', HOLDERS) < (limit or 1))
end

-- SPARE_FENCES: fences reserved after each granted one, for handovers in the holder's process.
-- FENCE_LEAD_US: distance from the clock at which fences start if the last fence is unknown, since
-- another server's clock may have given it (advance_fences_after_failover.lua).
local SPARE_FENCES, FENCE_LEAD_US = 32, 600000000

-- Returns a fence above every fence ever given in this shard, and reserves the spare ones after it.
-- `f` stores this fence rather than the last spare one: it usually equals the server time, of which
-- lock_batch_fast.lua has the text already.
local function next_fence()
  local last_fence = redis.call('HGET', SHARD_META, 'fence')
  local fence = integer(
    math.max(last_fence and last_fence + SPARE_FENCES + 1 or NOW_US + FENCE_LEAD_US, NOW_US)
  )
  redis.call('HSET', SHARD_META, 'fence', fence)
  return fence
end

-- Grants the lock and returns the fence.
local function grant(token, mode, lease_ms, is_only)
  local fence = next_fence()
  -- An exclusive holder is alone in h, and h expires with it; lock_batch_fast.lua relies on that.
  put_holder('h' .. MODE_TAGS[mode] .. token, lease_ms, is_only or mode == 'x')
  return fence
end

-- Returns the next sequence, for queue entries and jobs alike. It is a time, like a fence: if `f`
-- is lost, later arrivals still follow the entries that exist.
local function next_sequence()
  local sequence = math.max(tonumber(redis.call('HGET', SHARD_META, 'seq') or '0') + 1, NOW_US)
  redis.call('HSET', SHARD_META, 'seq', integer(sequence))
  return sequence
end

-- Checks a direct run, which renews its job while it runs (idempotent_run_record.lua). If the
-- renewal is overdue, the process of the run is lost. Returns:
--   'rerun'    it may run again; its job and record were deleted
--   'crashed'  it must not run again
--   nil        it is no direct run in progress, or its renewal is not due yet
local function check_direct_run(record_key, id)
  local values = redis.call(
    'HMGET', shard_key('j:' .. id), 'state', 'direct', 'til', 'again', 'owner'
  )
  if values[1] ~= 'running' or values[2] ~= '1'
    or not values[3] or tonumber(values[3]) > NOW_MS
  then
    return nil
  end
  if values[4] ~= '1' then return 'crashed' end
  redis.call('UNLINK', record_key, shard_key('j:' .. id))
  redis.call(
    'ZREM', shard_key('n:' .. (values[5] or '')), string.sub(record_key, #SHARD_PREFIX + 3)
  )
  redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
  return 'rerun'
end

-- Returns the node of the worker that watches the shard, or nil.
local function watching_node()
  local deadline_ms, node = string.match(redis.call('GET', SHARD_WATCH) or '', '^(%d+):(%x+)$')
  if deadline_ms and tonumber(deadline_ms) > NOW_MS then return node end
  return nil
end

-- Returns the end of a job's backoff, or nil if it has none. `backoffs`: field `back` of l.
local function backoff_end(backoffs, job_id)
  for deadline_ms, delayed_id in string.gmatch(backoffs or '', '(%d+) (%x+)') do
    if delayed_id == job_id and tonumber(deadline_ms) > NOW_MS then return tonumber(deadline_ms) end
  end
  return nil
end

-- Sets the time of the lock's next poll, and wakes the watching worker if that is earlier than its
-- next poll. An overdue other lock does not suppress the wake-up: the worker has polled it already,
-- and may not poll again because of it.
local function schedule(due_ms)
  local earliest = redis.call('ZRANGE', DUE, '0', '0', 'WITHSCORES')
  redis.call('ZADD', DUE, integer(due_ms), LOCK_NAME)
  local earliest_ms = tonumber(earliest[2] or '0')
  if earliest_ms > NOW_MS and due_ms >= earliest_ms then return end
  local node = watching_node()
  if node then redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node, 'd ' .. LOCK_NAME) end
end

-- Like `schedule`, but never moves a poll to a later time: the poll ends the skipping of jobs, and
-- traffic must not postpone it.
local function schedule_no_later(due_ms)
  local scheduled_ms = redis.call('ZSCORE', DUE, LOCK_NAME)
  if not scheduled_ms or tonumber(scheduled_ms) > due_ms then schedule(due_ms) end
end

-- Announces a queue entry (`kind` q) or a job (g) to the processes of all holders, once each.
-- `only_holder`: the only member of h, if known.
local function notify_holders(kind, sequence, only_holder)
  local notified = {}
  for _, member in ipairs(
    only_holder and {only_holder} or redis.call('ZRANGE', HOLDERS, '0', SCAN_LIMIT - 1)
  ) do
    local node = string.match(member, '^h[sp]?%x+:(%x+)$')
    if node and not notified[node] then
      notified[node] = true
      redis.call(
        PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node,
        kind .. ' ' .. LOCK_NAME .. ' ' .. integer(sequence)
      )
    end
  end
end

-- Removes a queue entry.
local function remove_waiter(member)
  redis.call('ZREM', WAITERS, member)
  redis.call('HDEL', QUEUE_META, '@' .. string.gsub(member, '^%d+:%a%d*:', ''))
end

-- Adds a queue entry that lasts `wait_ms`. While a lock has jobs, l has no TTL: the TTL of q then
-- removes the entries of dead processes but leaves their fields in l. Therefore the first entry of
-- an empty queue rewrites l, and l keeps such fields of one former queue at most. UNLINK costs this
-- script nothing, however many they are.
local function add_waiter(token, mode, limit, sequence, wait_ms)
  if redis.call('EXISTS', WAITERS) == 0 and redis.call('HLEN', QUEUE_META) > 4 then
    local values = redis.call('HMGET', QUEUE_META, 'park', 'back', 'bytes', 'past')
    redis.call('UNLINK', QUEUE_META)
    for i, field in ipairs({'park', 'back', 'bytes', 'past'}) do
      if values[i] then redis.call('HSET', QUEUE_META, field, values[i]) end
    end
  end
  local member = integer(NOW_MS + wait_ms) .. ':'
    .. mode .. (mode == 'p' and integer(limit) or '') .. ':' .. token
  redis.call('ZADD', WAITERS, integer(sequence), member)
  extend_ttl(WAITERS, wait_ms)
  redis.call('HSET', QUEUE_META, '@' .. token, member)
  if redis.call('EXISTS', JOBS) == 1 then
    redis.call('PERSIST', QUEUE_META)
  else
    extend_ttl(QUEUE_META, wait_ms)
  end
end

-- Returns the first live queue entry: sequence, token, member, mode, limit; nil if there is none.
-- Removes expired entries before it. Two kinds of entry keep their position but get no offer:
-- - The mode is unknown to this version: the token is nil.
-- - It follows `SCAN_LIMIT` expired entries: only the sequence is returned. It may be live, so no
--   other entry may overtake it.
local function first_live_waiter()
  for _ = 1, SCAN_LIMIT do
    local entry = redis.call('ZRANGE', WAITERS, '0', '0', 'WITHSCORES')
    if #entry == 0 then return nil end
    local deadline_ms, mode, limit, token = string.match(entry[1], '^(%d+):(%a)(%d*):(%x+:%x+)$')
    if deadline_ms and tonumber(deadline_ms) > NOW_MS then
      return tonumber(entry[2]), MODE_TAGS[mode] and token or nil, entry[1], mode, tonumber(limit)
    end
    remove_waiter(entry[1])
  end
  local entry = redis.call('ZRANGE', WAITERS, '0', '0', 'WITHSCORES')
  if #entry > 0 then return tonumber(entry[2]) end
  return nil
end

-- Returns the sequence and id of the first job, and the watching node. Jobs are skipped if
-- - an offer to them lapsed,
-- - the first one is in backoff, or
-- - no worker watches the shard.
-- Then it returns nil, the id of the first job, and the field `back`. Without jobs, only nil.
local function first_eligible_job()
  local entry = redis.call('ZRANGE', JOBS, '0', '0', 'WITHSCORES')
  if #entry == 0 then return nil end
  local values = redis.call('HMGET', QUEUE_META, 'park', 'back')
  local node = not (values[1] and tonumber(values[1]) <= NOW_MS)
    and not backoff_end(values[2], entry[1])
    and watching_node()
  if not node then return nil, entry[1], values[2] end
  return tonumber(entry[2]), entry[1], node
end

-- Offers the lock, for one offer timeout, to the head of the queue as far as it is admissible
-- beside the holders: one exclusive waiter, all leading shared ones, as many as there are permits,
-- or one job. The entry of a waiter leaves the queue, since a dead one would block it. A job stays,
-- and jobs are skipped from the end of the offer unless a worker claims it in time.
-- `is_free`: h is known to be empty.
local function offer_next(is_free)
  for _ = 1, SCAN_LIMIT do
    local latest_ms, held_mode
    if not is_free then latest_ms, held_mode = expire_holders() end
    is_free = false
    if held_mode == 'x' then return end
    local sequence, token, member, mode, limit = first_live_waiter()
    local job_sequence, job_id, node_or_backoffs = first_eligible_job()
    if sequence and (not job_sequence or sequence < job_sequence) then
      if not token or not is_admissible(mode, limit, held_mode) then return end
      remove_waiter(member)
      put_holder('o' .. MODE_TAGS[mode] .. token, OFFER_TIMEOUT_MS)
      redis.call(
        PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. string.match(token, ':(%x+)$'),
        'o ' .. LOCK_NAME .. ' ' .. token
      )
      if redis.call('EXISTS', JOBS) == 1 then schedule_no_later(NOW_MS + OFFER_TIMEOUT_MS) end
      if mode == 'x' then return end
    elseif latest_ms then
      return
    elseif job_sequence then
      put_holder('j' .. job_id, OFFER_TIMEOUT_MS)
      redis.call('HSET', QUEUE_META, 'park', integer(NOW_MS + OFFER_TIMEOUT_MS))
      redis.call('ZADD', DUE, integer(NOW_MS), LOCK_NAME)
      redis.call(
        PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node_or_backoffs,
        'j ' .. LOCK_NAME .. ' ' .. job_id
      )
      return
    else
      -- Skipped jobs on a free lock: a worker polls it when it arrives, or when the backoff ends.
      if job_id then schedule(backoff_end(node_or_backoffs, job_id) or NOW_MS) end
      return
    end
  end
end

-- Returns the time until the deadline that a busy caller waits for, in ms, and the length of the
-- queue. The deadline is the latest of h; but if only permits are missing, it is the one after
-- which fewer than `limit` are held.
local function busy_status(mode, limit)
  local latest_ms, held_mode = expire_holders()
  if held_mode == 'p' and mode == 'p' then
    local excess_rank = redis.call('ZCARD', HOLDERS) - limit
    if excess_rank >= 0 then
      latest_ms =
        tonumber(redis.call('ZRANGE', HOLDERS, excess_rank, excess_rank, 'WITHSCORES')[2])
    end
  end
  latest_ms = latest_ms or NOW_MS + OFFER_TIMEOUT_MS
  return integer(math.max(latest_ms - NOW_MS, 1)),
    redis.call('ZCARD', WAITERS) + redis.call('ZCARD', JOBS)
end
