-- What the scripts about deferred requests share. Stands behind line.lua and kept.lua, before each of them.
--
-- Keys beside those of the line. They have the shard's tag, so a script may make their names itself (`own`):
-- which job it will be about often turns out in the script alone.
-- j:<id>        HASH    facts of a job: state; lock; seq, its place in g; bytes; at, us when it was accepted; max attempts;
--                       if not 0: attempts, again (1 = may run again after a crash), skip (1 = others may pass it while
--                       it waits for its retry), exp (its deadline, ms); if there are: owner, run, reason, ended (us), by,
--                       record (the name of its idempotency record, without the lock's, and until when that is there
--                       at least, ms; behind it those of requests that were merged into it), call (who is told of its
--                       end: id, most attempts and lock of a job that there is from then on; '-' where there is a
--                       record and nobody is); of such a job: end, what
--                       it tells of that one, which may be forgotten first: state, attempts, ended (us), status of the
--                       response or 0, reason
-- b:<id>        STRING  its request      r:<id>  STRING  its response      t:<id>  STRING  the request of its call
--                       of one that was evicted or purged a tombstone is left for the rest of its time (kept.lua)
-- late          ZSET    of the shard: job that waits outside of any line -> when it comes back, ms
-- lates         HASH    of the shard: 'n' .. lock, 'b' .. lock: number and bytes of its late jobs
-- o:<owner>     HASH    jobs of an owner in this shard that wait or run -> their bytes, and '' -> the sum
-- exp           ZSET    of the shard: job that has a deadline -> that, ms
-- done, dead    ZSET    of the shard: ended job -> when it is forgotten, us; with their books in kept.lua
-- f has, besides the number and bytes of those that wait or run: keep, the most bytes of each index;
-- done_bytes and dead_bytes, the sums of those, and done_owned and dead_owned, what jobs with an owner have of it; how many were ever filed as done and dead, and
-- expired and cancelled; and done_out and dead_out: what was purged, or put back. What is in the indexes is what
-- is kept of them, the rest was taken by TTLs, or by the cap.
-- Of a request that runs at once (direct.lua): direct, and til, ms, by when its process renews it.
-- Besides, j has: began (us, the last run), crashes, busy and runs (its history).

-- How long it is known of a job that it was superseded, or that its time was over, ms.
local KEPT = 86400000

-- How long it is known what an owner has, after the last that was accepted of him, ms: nobody can tell whose job it
-- was whose keys have vanished, and it must not count for ever.
local OWNED = 2592000000

-- How long an idempotency record is there while its job waits or runs, ms: of one that has vanished it must not be
-- there for ever.
local PENDING = 2592000000

-- Sets when the watcher has to see to a job that is in one of the shard's indexes, and tells it if it must
-- wake sooner for that.
local function remind(index, id, at)
  local first = redis.call('ZRANGE', index, '0', '0', 'WITHSCORES')
  redis.call('ZADD', index, int(at), id)
  if #first > 0 and tonumber(first[2]) <= at then return end
  local node = watcher()
  if node then redis.call(PUBLISH, CHANNEL .. 'w:' .. node, 'd ' .. NAME) end
end

-- Puts a job outside of its line until a time. What is kept of it in g and l is the caller's.
local function put_late(id, at, bytes)
  remind(own('late'), id, at)
  redis.call('HINCRBY', own('lates'), 'n' .. NAME, '1')
  redis.call('HINCRBY', own('lates'), 'b' .. NAME, bytes)
end

-- Takes a job out of those that wait outside; false if it was none of them.
local function take_late(id, bytes)
  local late, lates = own('late'), own('lates')
  if redis.call('ZREM', late, id) == 0 then return false end
  if redis.call('HINCRBY', lates, 'n' .. NAME, '-1') <= 0 then
    redis.call('HDEL', lates, 'n' .. NAME, 'b' .. NAME)
  else
    redis.call('HINCRBY', lates, 'b' .. NAME, 0 - bytes)
  end
  -- Nothing is counted for jobs whose keys have vanished.
  if redis.call('EXISTS', late) == 0 then redis.call('DEL', lates) end
  return true
end

-- Puts a job into the line at its sequence. If the lock is free, it is offered to whoever is first now.
local function stand(id, seq, bytes)
  redis.call('ZADD', G, int(seq), id)
  -- The first of a line, whose l may have an end.
  if redis.call('HINCRBY', L, 'bytes', bytes) == bytes then redis.call('PERSIST', L) end
  local last, _, alone = held_until()
  if last then
    tell_holders('g', seq, alone)
    if not redis.call('ZSCORE', DUE, NAME) then arm(last) end
  else
    move_on(true)
  end
end

-- Counts a job for its owner, if it has one. By its id, so that what is done twice counts once.
local function count_for(owner, id, bytes)
  if not owner or owner == '' then return end
  local key = own('o:' .. owner)
  if redis.call('HSETNX', key, id, bytes) == 1 then redis.call('HINCRBY', key, '', bytes) end
  redis.call('PEXPIRE', key, OWNED)
end

-- Takes a job from what its owner has.
local function uncount_for(owner, id)
  if not owner or owner == '' then return end
  local key = own('o:' .. owner)
  local bytes = redis.call('HGET', key, id)
  if not bytes then return end
  redis.call('HDEL', key, id)
  if redis.call('HINCRBY', key, '', 0 - bytes) <= 0 then redis.call('DEL', key) end
end

-- One job less of the shard.
local function uncount(bytes)
  -- What a job that vanished was counted as is not known: nothing left is nothing counted.
  if redis.call('HINCRBY', F, 'jobs', '-1') <= 0 then return redis.call('HSET', F, 'jobs', '0', 'bytes', '0') end
  -- Not -bytes: of 0 that is '-0' on the wire, which the server does not take for a number.
  if redis.call('HINCRBY', F, 'bytes', 0 - bytes) < 0 then redis.call('HSET', F, 'bytes', '0') end
end

-- The first job of a line and its sequence; `more` if another one stands behind it.
local function first_two()
  local rows = redis.call('ZRANGE', G, '0', '1', 'WITHSCORES')
  rows.more, rows[3], rows[4] = rows[3], nil, nil
  return rows
end

-- A job with a record has ended, and is kept for a time: a retry is told of its end for as long.
local function remember_end(id)
  local kept = redis.call('PTTL', own('j:' .. id))
  local v = redis.call('HMGET', own('j:' .. id), 'record', 'owner')
  for name, til in string.gmatch(v[1] or '', '(%S+) (%d+)') do
    local record = own('i:' .. name .. ':' .. NAME)
    if kept > 0 and string.match(redis.call('GET', record) or '', '^%S+') == id then
      extend_record(record, math.max(tonumber(til) - NOW, kept), v[2] or '')
    end
  end
end

-- A job has ended: the call that tells of it, which was stored along with it, becomes a job in its own line, in this
-- step, so nobody can die in between. `keep`: ms that it is kept besides, should the job be put back. `status`: of its
-- response, if it has one.
local function call_back(id, call, keep, status)
  if call then remember_end(id) end
  local whose, most, lock = string.match(call or '', '^(%x+) (%d+) (%S+)$')
  local kept = own('t:' .. id)
  local bytes = whose and redis.call('STRLEN', kept) or 0
  if bytes == 0 then return end
  local facts, request = own('j:' .. whose), own('b:' .. whose)
  local state = redis.call('HGET', facts, 'state')
  local v = redis.call('HMGET', own('j:' .. id), 'state', 'attempts', 'ended', 'reason', 'owner')
  local told = (v[1] or 'dead') .. ' ' .. (v[2] or '0') .. ' ' .. (v[3] or '0') .. ' ' .. (status or '0') .. ' '
    .. (v[4] or '')
  -- One that was put back ends again. A call that has not been made yet tells of the last end, with all attempts to
  -- come; so does one that is being made, which finds that out as it is settled.
  local waits = state == 'queued' or state == 'running'
  if waits then redis.call('HSET', facts, 'end', told, 'attempts', '0') end
  if not waits and keep then
    redis.call('COPY', kept, request, 'REPLACE')
  elseif not waits then
    redis.call('RENAME', kept, request)
  end
  if keep then redis.call('PEXPIRE', kept, keep) else redis.call('DEL', kept) end
  if waits then return end
  redis.call('PERSIST', request)
  -- Also of facts that a TTL has taken: what makes room there forgets whom it finds, with the request.
  unfile('done', whose)
  unfile('dead', whose)
  redis.call('DEL', facts, own('r:' .. whose))
  local seq, here = next_seq(), NAME
  redis.call('HSET', facts, 'state', 'queued', 'lock', lock, 'seq', int(seq), 'bytes', bytes, 'at', int(NOW_US),
    'max', most, 'again', 1, 'end', told)
  -- It counts as the request did: who says whom to call is not to fill the queue for the others.
  local owner = v[5] or ''
  if owner ~= '' then redis.call('HSET', facts, 'owner', owner) end
  count_for(owner, whose, bytes)
  redis.call('HINCRBY', F, 'jobs', '1')
  redis.call('HINCRBY', F, 'bytes', bytes)
  turn_to(SHARD, lock)
  stand(whose, seq, bytes)
  turn_to(SHARD, here)
end

-- Most backoffs that are known of a line: of those that have failed last. Mostly there is one, of the first.
local BACKS = 16

-- What l says of the backoffs of others than this job, as far as they are not over.
local function other_backs(back, id)
  local others = {}
  for til, whose in string.gmatch(back or '', '(%d+) (%x+)') do
    if whose ~= id and tonumber(til) > NOW then others[#others + 1] = til .. ' ' .. whose end
  end
  return others
end

-- A backoff is a job's own and ends with it. Returns what is said of others.
local function forget_back(back, id)
  if not back or not string.find(back, ' ' .. id, 1, true) then return back end
  local others = table.concat(other_backs(back, id), ' ')
  if others == '' then
    redis.call('HDEL', L, 'back')
    return nil
  end
  redis.call('HSET', L, 'back', others)
  return others
end

-- No jobs are left. Only places are left in l, if anything: it goes with them. True if there are none either.
local function unpark()
  local left = redis.call('PTTL', Q)
  if left > 0 then
    redis.call('HDEL', L, 'park', 'back', 'bytes')
    redis.call('PEXPIRE', L, left)
  else
    redis.call('UNLINK', L)
  end
  return left == -2
end

-- A job is out of g: what l kept for it goes. Returns who is first now, as first_two, with the backoff; `alone` if
-- nobody is left, no place either.
local function left_line(id, bytes)
  local first = first_two()
  if #first > 0 then
    local v = redis.call('HMGET', L, 'bytes', 'back')
    redis.call('HSET', L, 'bytes', math.max(tonumber(v[1] or '0') - bytes, 0))
    first[3] = forget_back(v[2] or nil, id)
    return first
  end
  redis.call('ZREM', DUE, NAME)
  first.alone = unpark()
  return first
end

-- Takes a job out of the line, or out of those that are late, for good. Its own key keeps what the status
-- tells.
local function end_job(id, bytes)
  redis.call('ZREM', own('exp'), id)
  uncount(bytes)
  uncount_for(redis.call('HGET', own('j:' .. id), 'owner'), id)
  local stood = redis.call('ZREM', G, id) == 1
  if not stood and take_late(id, bytes) then return end
  local first = left_line(id, stood and bytes or 0)
  -- It may have been its backoff that the lock is due at the end of.
  if #first > 0 then redis.call('ZADD', DUE, int(NOW), NAME) end
end

-- Ends a request that ran at once and of which it is unknown how far it came: its record answers with that for ms.
local function bury_direct(record, id, reason, ms)
  local key = own('j:' .. id)
  -- First, since a server without room refuses a script that begins by taking some: see renew.lua.
  redis.call('HDEL', key, '', 'til')
  redis.call('HSET', key, 'state', 'dead', 'reason', reason, 'ended', int(NOW_US))
  redis.call('PEXPIRE', key, int(ms))
  local owner = redis.call('HGET', key, 'owner') or ''
  local mine = string.match(redis.call('GET', record) or '', '^%S+') == id
  if mine and redis.call('PTTL', record) < ms then extend_record(record, ms, owner) end
  file_under('dead', id, ms, 0, redis.call('HINCRBY', F, 'dead', 1), owner)
  redis.call(PUBLISH, CHANNEL .. 'c', id)
end

-- As look_at_direct; what crashed and must not run again is dead then. True if the record is free.
local function settle_crashed(record, id)
  local found = look_at_direct(record, id)
  if found == 'crashed' then
    bury_direct(record, id, 'crashed, may have run', math.max(redis.call('PTTL', own('j:' .. id)), 1))
  end
  return found == 'again'
end

-- Ends a job that waits, 'cancelled' or 'expired', with a reason, unless that is ''. It is kept so many
-- ms, without its request, and is in no index: how many there were is counted.
local function drop_job(id, bytes, state, reason, ms, by)
  local facts = own('j:' .. id)
  -- First: a server without room refuses what begins by taking some.
  redis.call('DEL', own('b:' .. id))
  redis.call('HSET', facts, 'state', state, 'ended', int(NOW_US))
  if reason ~= '' then redis.call('HSET', facts, 'reason', reason) end
  if by then redis.call('HSET', facts, 'by', by) end
  redis.call('PEXPIRE', facts, int(ms))
  redis.call('HINCRBY', F, state, '1')
  redis.call('ZREM', H, 'j' .. id)
  end_job(id, bytes)
  move_on()
  call_back(id, redis.call('HGET', facts, 'call'))
  redis.call(PUBLISH, CHANNEL .. 'c', id)
end

-- Ends a job that waits past its deadline.
local function expire_job(id, bytes)
  drop_job(id, bytes, 'expired', 'deadline', KEPT)
end
