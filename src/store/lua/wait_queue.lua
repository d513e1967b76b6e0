-- The line of one lock: what acquire, release, enqueue, claim, settle and cancel share.
--
-- This file is put in front of each of those scripts. Each says with `at` which lock it is about, by its h;
-- lock_batch.lua, run_batch.lua and enqueue_batch.lua are about several, one after the other. The other names are made here: all
-- carry the same tag, and each key that is declared costs the server what making two names does. (In a cluster one
-- that is never there is declared too, see keys.rs.)
--
-- h      ZSET  who holds the lock or has been offered it: member -> server deadline, ms
-- l      HASH  facts that go with the line: park, back ('<ms> <job id>', who has failed last first), bytes, past, '@<place>' -> member in q
-- q      ZSET  places of live processes: '<deadline ms>:<mode>:<nonce>:<node>' -> sequence
-- g      ZSET  deferred jobs: job id -> sequence (the same sequence as q)
-- due    ZSET  of the shard: lock that has jobs -> when a worker should look at it, ms
-- f      HASH  of the shard, never expires: last fence, sequence, number and bytes of jobs
-- watch  STRING of the shard, never expires: '<deadline ms>:<node>' of the worker that watches it.
--        With its deadline inside, a worker's sign of life (heartbeat.lua) is one MSET, not 64 TTLs.
--        '<deadline ms>:' while it is left to the others who live: until then one is about to take it
-- When the lease of a running job ends is told by `due`, which its lock stays in while it has jobs: whoever
-- looks then finds the job running and its token gone from h. An index of leases would say the same again.
-- The lock's name and the prefix of all channels are read off h, 'lg:1:<ns>:{<shard>}:h:<name>':
-- every argument is work for the server, in every call.
--
-- Modes: x = exclusive, s = shared, p<n> = at most n at once. Those in h at one time are of one mode.
-- Members of h: 'h<token>' holds, 'o<token>' is a place that was offered the lock; for the modes s and
-- p their letter stands before the token ('hs<token>', 'op<token>'; a token is hex). 'j<job id>' is a
-- job that was offered it. A member whose deadline has passed counts for nothing.
local HOLDERS, QUEUE_META, WAITERS, JOBS, DUE, SHARD_META, SHARD_WATCH, LOCK_NAME, SHARD_PREFIX
local NAMESPACE_PREFIX = string.match(KEYS[1], '^[^{]*')
local CHANNEL_PREFIX = SHARD_CHANNEL_PREFIX or NAMESPACE_PREFIX
-- For how long an offered lock waits to be confirmed, ms.
local OFFER_TIMEOUT_MS = 300
local MODE_TAGS = {x = '', s = 's', p = 'p'}

-- Turns to a lock by its name. The tag is what all names of the shard begin with, up to the kind.
local function select_lock(shard_prefix, lock_name)
  HOLDERS, QUEUE_META, WAITERS, JOBS, LOCK_NAME = shard_prefix .. 'h:' .. lock_name, shard_prefix .. 'l:' .. lock_name, shard_prefix .. 'q:' .. lock_name, shard_prefix .. 'g:' .. lock_name, lock_name
  if shard_prefix ~= SHARD_PREFIX then SHARD_PREFIX, DUE, SHARD_META, SHARD_WATCH = shard_prefix, shard_prefix .. 'due', shard_prefix .. 'f', shard_prefix .. 'watch' end
end

-- Turns to the lock whose h this is.
local function select_lock_by_key(holders_key)
  local shard_prefix = string.find(holders_key, '}:h:', #NAMESPACE_PREFIX, true)
  select_lock(string.sub(holders_key, 1, shard_prefix + 1), string.sub(holders_key, shard_prefix + 4))
end

-- The name of another key of the shard.
local function shard_key(kind) return SHARD_PREFIX .. kind end

local time = redis.call('TIME')
-- Microseconds since 1970 stay below 2^53 until the year 2255, so a Lua number holds them exactly.
local NOW_US = tonumber(time[1]) * 1000000 + tonumber(time[2])
local NOW_MS = math.floor(NOW_US / 1000)
-- Rows that one script may look at: a bound on its running time, not on the line.
local SCAN_LIMIT = 100

-- A number that goes to a command is made text first, a whole one in two parts: the server would print it as a
-- fraction, which costs as much as a command does. (One that is written out in a script is text there.)
local function integer(number)
  if number < 0 then return string.format('%.0f', number) end
  local low = number % 1000000000
  local high = (number - low) / 1000000000
  return high > 0 and string.format('%d%09d', high, low) or string.format('%d', low)
end

-- Gives key at least ms to live, and never shortens: a key that has lost its TTL gets it back.
local function extend_ttl(key, ttl_ms)
  if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, integer(ttl_ms)) end
end

-- Writes a member of h. The key lives exactly as long as its latest member; `alone` saves the look.
local function put_holder(member, ttl_ms, is_only)
  redis.call('ZADD', HOLDERS, integer(NOW_MS + ttl_ms), member)
  if is_only then redis.call('PEXPIRE', HOLDERS, integer(ttl_ms)) else extend_ttl(HOLDERS, ttl_ms) end
end

-- Takes expired holders and offers out; returns the latest deadline that is left and the mode of those
-- who have it, or nil if it is free; and who is there alone, in mode x: he came when all before him were out.
local function expire_holders()
  local latest = redis.call('ZRANGE', HOLDERS, '-1', '-1', 'WITHSCORES')
  if #latest == 0 then return nil end
  local mode_tag, is_live = string.match(latest[1], '^[ho]([sp])'), tonumber(latest[2]) > NOW_MS
  if is_live and not mode_tag then return tonumber(latest[2]), 'x', latest[1] end
  redis.call('ZREMRANGEBYSCORE', HOLDERS, '-inf', integer(NOW_MS))
  if not is_live then return nil end
  return tonumber(latest[2]), mode_tag
end

-- Whether one more of this mode may come in, where those of the mode `held` are (nil: nobody is). Each
-- has its own limit of permits: where they differ, there are never more than the greatest of them.
local function is_admissible(mode, limit, held_mode)
  if not held_mode then return true end
  if mode ~= held_mode then return false end
  return mode == 's' or (mode == 'p' and redis.call('ZCARD', HOLDERS) < (limit or 1))
end

-- Fences after each that is given, for hand-overs in the holder's process; and how far ahead of the clock fences begin,
-- us, where the last one is not known: those before may have been given by another server's clock (advance_fences_after_failover.lua).
local SPARE_FENCES, FENCE_LEAD_US = 32, 600000000

-- A fence above every fence ever given in this shard; the spare ones after it are the holder's too. What is
-- kept is the last one itself: it mostly is the server's time, whose text is there already.
local function next_fence()
  local last_fence = redis.call('HGET', SHARD_META, 'fence')
  local fence = integer(math.max(last_fence and last_fence + SPARE_FENCES + 1 or NOW_US + FENCE_LEAD_US, NOW_US))
  redis.call('HSET', SHARD_META, 'fence', fence)
  return fence
end

local function grant(token, mode, lease_ms, is_only)
  local fence = next_fence()
  -- Who is in mode x is alone, and the key ends with him: lock_batch_fast.lua relies on that.
  put_holder('h' .. MODE_TAGS[mode] .. token, lease_ms, is_only or mode == 'x')
  return fence
end

-- The next number in line, for places and jobs alike. It is a time for the same reason as a fence is:
-- should f be lost, those who come later must still stand behind those who are there.
local function next_sequence()
  local sequence = math.max(tonumber(redis.call('HGET', SHARD_META, 'seq') or '0') + 1, NOW_US)
  redis.call('HSET', SHARD_META, 'seq', integer(sequence))
  return sequence
end

-- A request that runs at once renews its job (direct_run.lua). One that did not in time has lost its process: it is
-- forgotten with its record if it may run again. Returns 'again' then, 'crashed' if it must not, else nil.
local function check_direct_run(record_key, id)
  local values = redis.call('HMGET', shard_key('j:' .. id), 'state', 'direct', 'til', 'again', 'owner')
  if values[1] ~= 'running' or values[2] ~= '1' or not values[3] or tonumber(values[3]) > NOW_MS then return nil end
  if values[4] ~= '1' then return 'crashed' end
  redis.call('UNLINK', record_key, shard_key('j:' .. id))
  redis.call('ZREM', shard_key('n:' .. (values[5] or '')), string.sub(record_key, #SHARD_PREFIX + 3))
  redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'c', id)
  return 'again'
end

-- The node whose worker watches the shard; nil if none does.
local function watching_node()
  local deadline_ms, node = string.match(redis.call('GET', SHARD_WATCH) or '', '^(%d+):(%x+)$')
  if deadline_ms and tonumber(deadline_ms) > NOW_MS then return node end
  return nil
end

-- Until when the job is in backoff, by what l says of those that are; nil if it is not.
local function backoff_end(backoffs, job_id)
  for deadline_ms, delayed_id in string.gmatch(backoffs or '', '(%d+) (%x+)') do
    if delayed_id == job_id and tonumber(deadline_ms) > NOW_MS then return tonumber(deadline_ms) end
  end
  return nil
end

-- Sets when a worker should look at this lock, and tells the watcher if it must wake sooner for it. Another lock
-- that is overdue is no reason to be silent: the worker has been there, and may not look again for its sake.
local function schedule(due_ms)
  local earliest = redis.call('ZRANGE', DUE, '0', '0', 'WITHSCORES')
  redis.call('ZADD', DUE, integer(due_ms), LOCK_NAME)
  local earliest_ms = tonumber(earliest[2] or '0')
  if earliest_ms > NOW_MS and due_ms >= earliest_ms then return end
  local node = watching_node()
  if node then redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node, 'd ' .. LOCK_NAME) end
end

-- As arm, but a look that is due already stays so, and one that comes sooner too: it ends the passing
-- over of jobs, and traffic must not put it off.
local function schedule_by(due_ms)
  local scheduled_ms = redis.call('ZSCORE', DUE, LOCK_NAME)
  if not scheduled_ms or tonumber(scheduled_ms) > due_ms then schedule(due_ms) end
end

-- Tells the processes of all holders that a place (q) or a job (g) joined the line at this sequence, each once.
-- `alone`: the only one, if that is known.
local function notify_holders(kind, sequence, only_holder)
  local notified = {}
  for _, member in ipairs(only_holder and {only_holder} or redis.call('ZRANGE', HOLDERS, '0', SCAN_LIMIT - 1)) do
    local node = string.match(member, '^h[sp]?%x+:(%x+)$')
    if node and not notified[node] then
      notified[node] = true
      redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node, kind .. ' ' .. LOCK_NAME .. ' ' .. integer(sequence))
    end
  end
end

-- Takes a place out of the line.
local function remove_waiter(member)
  redis.call('ZREM', WAITERS, member)
  redis.call('HDEL', QUEUE_META, '@' .. string.gsub(member, '^%d+:%a%d*:', ''))
end

-- Puts a place into the line, for ms. While a lock has jobs, l has no end: q's TTL takes away places
-- whose processes died, and leaves their fields. So the first place of a line makes l anew, and fields
-- are left of the line before at most. UNLINK: however many, they cost this script nothing.
local function add_waiter(token, mode, limit, sequence, wait_ms)
  if redis.call('EXISTS', WAITERS) == 0 and redis.call('HLEN', QUEUE_META) > 4 then
    local values = redis.call('HMGET', QUEUE_META, 'park', 'back', 'bytes', 'past')
    redis.call('UNLINK', QUEUE_META)
    for i, field in ipairs({'park', 'back', 'bytes', 'past'}) do
      if values[i] then redis.call('HSET', QUEUE_META, field, values[i]) end
    end
  end
  local member = integer(NOW_MS + wait_ms) .. ':' .. mode .. (mode == 'p' and integer(limit) or '') .. ':' .. token
  redis.call('ZADD', WAITERS, integer(sequence), member)
  extend_ttl(WAITERS, wait_ms)
  redis.call('HSET', QUEUE_META, '@' .. token, member)
  if redis.call('EXISTS', JOBS) == 1 then redis.call('PERSIST', QUEUE_META) else extend_ttl(QUEUE_META, wait_ms) end
end

-- First place whose process may still be waiting: sequence, '<nonce>:<node>', member, mode, limit. A place
-- of a mode that this version does not know stands in line like any other, but is nobody it could offer to;
-- and so does the one behind more dead places than a script may look at: it may be alive, and is not passed.
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

-- First job, with its sequence and the watcher, unless the jobs are passed over: an offer to them lapsed, the first
-- one is in backoff, or no worker watches the shard. Then nil, the one that is hidden, and what l says of a backoff.
local function first_eligible_job()
  local entry = redis.call('ZRANGE', JOBS, '0', '0', 'WITHSCORES')
  if #entry == 0 then return nil end
  local values = redis.call('HMGET', QUEUE_META, 'park', 'back')
  local node = not (values[1] and tonumber(values[1]) <= NOW_MS) and not backoff_end(values[2], entry[1]) and watching_node()
  if not node then return nil, entry[1], values[2] end
  return tonumber(entry[2]), entry[1], node
end

-- The lock is offered for one accept window to whoever is at the head of its line and fits beside those
-- who are in: one writer, the leading run of readers, as many as there are permits. A live place leaves
-- the line (a dead one would block everybody); a job stays, and is parked unless a worker claims it.
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
      redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. string.match(token, ':(%x+)$'), 'o ' .. LOCK_NAME .. ' ' .. token)
      if redis.call('EXISTS', JOBS) == 1 then schedule_by(NOW_MS + OFFER_TIMEOUT_MS) end
      if mode == 'x' then return end
    elseif latest_ms then
      return
    elseif job_sequence then
      put_holder('j' .. job_id, OFFER_TIMEOUT_MS)
      redis.call('HSET', QUEUE_META, 'park', integer(NOW_MS + OFFER_TIMEOUT_MS))
      redis.call('ZADD', DUE, integer(NOW_MS), LOCK_NAME)
      redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node_or_backoffs, 'j ' .. LOCK_NAME .. ' ' .. job_id)
      return
    else
      -- Hidden jobs on a free lock: a worker looks when it comes, or when the backoff is over.
      if job_id then schedule(backoff_end(node_or_backoffs, job_id) or NOW_MS) end
      return
    end
  end
end

-- What a request that was not let in is told: ms until the deadline it waits for, length of the line. That
-- is the last one, unless nothing but permits is wanting: then the one that leaves fewer than there may be.
local function busy_status(mode, limit)
  local latest_ms, held_mode = expire_holders()
  if held_mode == 'p' and mode == 'p' then
    local excess_rank = redis.call('ZCARD', HOLDERS) - limit
    if excess_rank >= 0 then latest_ms = tonumber(redis.call('ZRANGE', HOLDERS, excess_rank, excess_rank, 'WITHSCORES')[2]) end
  end
  latest_ms = latest_ms or NOW_MS + OFFER_TIMEOUT_MS
  return integer(math.max(latest_ms - NOW_MS, 1)), redis.call('ZCARD', WAITERS) + redis.call('ZCARD', JOBS)
end
