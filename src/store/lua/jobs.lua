-- What the scripts about deferred requests share. Stands behind line.lua, before each of them.
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
--                       of one that was forgotten on purpose there is at alone, for a minute from then
-- late          ZSET    of the shard: job that waits outside of any line -> when it comes back, ms
-- lates         HASH    of the shard: 'n' .. lock, 'b' .. lock: number and bytes of its late jobs
-- o:<owner>     HASH    jobs of an owner in this shard that wait or run -> their bytes, and '' -> the sum
-- exp           ZSET    of the shard: job that has a deadline -> that, ms
-- done, dead    ZSET    of the shard: ended job -> when it is forgotten, us
-- donebytes, deadbytes HASH beside each, for as long as it: its jobs -> the bytes that are kept of them
-- f has, besides the number and bytes of those that wait or run: keep, the most bytes of each index;
-- done_bytes and dead_bytes, the sums of those; how many were ever filed as done and dead, and
-- expired and cancelled; and done_out and dead_out: what was purged, or put back. What is in the indexes is what
-- is kept of them, the rest was taken by TTLs, or by the cap.
-- Of a request that runs at once (direct.lua): direct, and til, ms, by when its process renews it.
-- Besides, j has: began (us, the last run), crashes, busy and runs (its history).

-- Most dead jobs that a shard keeps: one that always fails must not fill the server.
local DEAD = 10000
local FILED = 0
-- Most bytes that a shard keeps of done jobs, and of dead ones, where no layer has said it.
local KEEP = 16777216
-- What an ended job takes besides its request or its response, about: its facts, and its entries here and there.
local SIZE = 512
-- Ended jobs that one step looks at to make room for another one: it takes them in small portions, mostly one is enough.
local PORTION, PORTIONS = 8, 12

-- How long it is known of a job that it was superseded, or that its time was over, ms.
local KEPT = 86400000

-- How long it is known of a job at least that it was stored, ms.
local COPIES = 60000

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

-- Takes jobs that have left an index out of its books. Returns the bytes that were kept of them.
local function sizes_of(index, ids)
  local sum = 0
  for _, size in ipairs(redis.call('HMGET', index .. 'bytes', unpack(ids))) do sum = sum + tonumber(size or '0') end
  redis.call('HDEL', index .. 'bytes', unpack(ids))
  return sum
end

-- Takes an ended job out of its index by hand, if it is there.
local function unfile(kind, id)
  if redis.call('ZREM', own(kind), id) == 0 then return end
  redis.call('HINCRBY', F, kind .. '_out', 1)
  redis.call('HINCRBY', F, kind .. '_bytes', int(0 - sizes_of(own(kind), {id})))
end

-- Forgets jobs that are in no index any more. Of those that were accepted lately it stays known that they were: a copy of
-- the call that has stored one may come yet, and would store it again. Returns how many keys there were of them.
local function forget(ids)
  local keys, times = {}, {}
  for i, id in ipairs(ids) do
    keys[4 * i - 3], keys[4 * i - 2], keys[4 * i - 1] = own('j:' .. id), own('b:' .. id), own('r:' .. id)
    keys[4 * i] = own('t:' .. id)
    times[i] = redis.call('HGET', keys[4 * i - 3], 'at')
  end
  local gone = redis.call('UNLINK', unpack(keys))
  for i = 1, #ids do
    local left = COPIES - math.floor((NOW_US - tonumber(times[i] or '0')) / 1000)
    if left > 0 then
      redis.call('HSET', keys[4 * i - 3], 'at', times[i])
      redis.call('PEXPIRE', keys[4 * i - 3], int(math.min(left, COPIES)))
    end
  end
  return gone
end

-- Forgets ended jobs, with all that is kept of them. Returns the bytes of that.
local function forget_ended(index, ids)
  redis.call('ZREM', index, unpack(ids))
  forget(ids)
  return sizes_of(index, ids)
end

-- A job with a record has ended, and is kept for a time: a retry is told of its end for as long.
local function remember_end(id)
  local kept = redis.call('PTTL', own('j:' .. id))
  for name, til in string.gmatch(redis.call('HGET', own('j:' .. id), 'record') or '', '(%S+) (%d+)') do
    local record = own('i:' .. name .. ':' .. NAME)
    if kept > 0 and string.match(redis.call('GET', record) or '', '^%S+') == id then
      redis.call('PEXPIRE', record, int(math.max(tonumber(til) - NOW, kept)))
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

-- Forgets ended jobs that their keys' TTL has taken away, and the oldest dead one beyond the cap. The newest stays also
-- where its time ends before that of all others: its end has yet to be told. Returns the bytes of that.
local function trim(index, newest)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', int(NOW_US), 'LIMIT', 0, SCAN)
  local bytes = 0
  if #old > 0 then
    redis.call('ZREM', index, unpack(old))
    bytes = sizes_of(index, old)
  end
  if index == own('dead') and redis.call('ZCARD', index) > DEAD then
    local oldest = redis.call('ZRANGE', index, 0, 1)
    bytes = bytes + forget_ended(index, {oldest[1] == newest and oldest[2] or oldest[1]})
  end
  return bytes
end

-- Forgets the oldest of an index for the newest, of `size`, which stays in any case, until no more than `most` of the
-- bytes are left. What one step does not get through is left to the next ones. Returns the sum that is left.
local function shed(index, newest, size, sum, most)
  for _ = 1, PORTIONS do
    if sum <= most then return sum end
    local ids, gone, left = redis.call('ZRANGE', index, 0, PORTION), {}, sum
    local sizes = redis.call('HMGET', index .. 'bytes', unpack(ids))
    for i, id in ipairs(ids) do
      if id ~= newest and left > most then
        -- The books have vanished, and begin anew.
        if not sizes[i] then return size end
        gone[#gone + 1], left = id, left - tonumber(sizes[i])
      end
    end
    if #gone == 0 then return size end
    sum = sum - forget_ended(index, gone)
  end
  return sum
end

-- Puts an ended job into an index for ms, as the n-th, with the bytes that are kept of it. Scores are microseconds,
-- each its own, so that a list can go on behind any of them. The index lives a little longer than it must: most jobs
-- need not prolong it then. `sum`, `most`: the bytes there are, and may be, as f says. Returns the new sum, which is
-- the caller's to write down.
local function file(index, id, ms, n, bytes, sum, most)
  FILED = FILED + 1
  redis.call('ZADD', index, NOW_US + ms * 1000 + FILED, id)
  local sizes, left = index .. 'bytes', redis.call('PTTL', index)
  sum = tonumber(sum or '0')
  -- A new index: the books of the one before are void.
  if left == -1 then
    redis.call('DEL', sizes)
    sum = 0
  end
  redis.call('HSET', sizes, id, int(SIZE + bytes))
  sum = sum + SIZE + bytes
  if left < ms + 1 then
    left = math.floor(ms + ms / 8 + 1)
    redis.call('PEXPIRE', index, left)
    redis.call('PEXPIRE', sizes, left)
  elseif n % 16 == 0 then
    -- Had they vanished, they would be without an end.
    redis.call('PEXPIRE', sizes, left)
  end
  if n % 16 == 0 or index == own('dead') then sum = sum - trim(index, id) end
  most = tonumber(most or KEEP)
  if sum > most then sum = shed(index, id, SIZE + bytes, sum, most) end
  return int(math.max(sum, 0))
end

-- As file, as one more, for those who count nothing else.
local function file_under(kind, id, ms, bytes, n)
  local v = redis.call('HMGET', F, 'keep', kind .. '_bytes')
  local sum = file(own(kind), id, ms, n, bytes, v[2] or nil, v[1] or nil)
  redis.call('HSET', F, kind .. '_bytes', sum)
end

-- Ends a request that ran at once and of which it is unknown how far it came: its record answers with that for ms.
local function bury_direct(record, id, reason, ms)
  local key = own('j:' .. id)
  -- First, since a server without room refuses a script that begins by taking some: see renew.lua.
  redis.call('HDEL', key, '', 'til')
  redis.call('HSET', key, 'state', 'dead', 'reason', reason, 'ended', int(NOW_US))
  redis.call('PEXPIRE', key, int(ms))
  if string.match(redis.call('GET', record) or '', '^%S+') == id then keep_ttl(record, ms) end
  file_under('dead', id, ms, 0, redis.call('HINCRBY', F, 'dead', 1))
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
