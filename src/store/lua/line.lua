-- The line of one lock: what acquire, release, enqueue, claim, settle and cancel share.
--
-- This file is put in front of each of those scripts. Each says with `at` which lock it is about, by its h;
-- calls.lua, runs.lua and enqueue.lua are about several, one after the other. The other names are made here: all
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
--        With its deadline inside, a worker's sign of life (beat.lua) is one MSET, not 64 TTLs.
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
local H, L, Q, G, DUE, F, WATCH, NAME, SHARD
local PREFIX = string.match(KEYS[1], '^[^{]*')
local CHANNEL = OWN or PREFIX
-- For how long an offered lock waits to be confirmed, ms.
local ACCEPT = 300
local TAG = {x = '', s = 's', p = 'p'}

-- Turns to a lock by its name. The tag is what all names of the shard begin with, up to the kind.
local function turn_to(tag, name)
  H, L, Q, G, NAME = tag .. 'h:' .. name, tag .. 'l:' .. name, tag .. 'q:' .. name, tag .. 'g:' .. name, name
  if tag ~= SHARD then SHARD, DUE, F, WATCH = tag, tag .. 'due', tag .. 'f', tag .. 'watch' end
end

-- Turns to the lock whose h this is.
local function at(key)
  local tag = string.find(key, '}:h:', #PREFIX, true)
  turn_to(string.sub(key, 1, tag + 1), string.sub(key, tag + 4))
end

-- The name of another key of the shard.
local function own(name) return SHARD .. name end

local time = redis.call('TIME')
-- Microseconds since 1970 stay below 2^53 until the year 2255, so a Lua number holds them exactly.
local NOW_US = tonumber(time[1]) * 1000000 + tonumber(time[2])
local NOW = math.floor(NOW_US / 1000)
-- Rows that one script may look at: a bound on its running time, not on the line.
local SCAN = 100

-- A number that goes to a command is made text first, a whole one in two parts: the server would print it as a
-- fraction, which costs as much as a command does. (One that is written out in a script is text there.)
local function int(n)
  if n < 0 then return string.format('%.0f', n) end
  local low = n % 1000000000
  local high = (n - low) / 1000000000
  return high > 0 and string.format('%d%09d', high, low) or string.format('%d', low)
end

-- Gives key at least ms to live, and never shortens: a key that has lost its TTL gets it back.
local function keep_ttl(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, int(ms)) end
end

-- Writes a member of h. The key lives exactly as long as its latest member; `alone` saves the look.
local function put(member, ms, alone)
  redis.call('ZADD', H, int(NOW + ms), member)
  if alone then redis.call('PEXPIRE', H, int(ms)) else keep_ttl(H, ms) end
end

-- Takes expired holders and offers out; returns the latest deadline that is left and the mode of those
-- who have it, or nil if it is free; and who is there alone, in mode x: he came when all before him were out.
local function held_until()
  local last = redis.call('ZRANGE', H, '-1', '-1', 'WITHSCORES')
  if #last == 0 then return nil end
  local letter, live = string.match(last[1], '^[ho]([sp])'), tonumber(last[2]) > NOW
  if live and not letter then return tonumber(last[2]), 'x', last[1] end
  redis.call('ZREMRANGEBYSCORE', H, '-inf', int(NOW))
  if not live then return nil end
  return tonumber(last[2]), letter
end

-- Whether one more of this mode may come in, where those of the mode `held` are (nil: nobody is). Each
-- has its own limit of permits: where they differ, there are never more than the greatest of them.
local function fits(mode, limit, held)
  if not held then return true end
  if mode ~= held then return false end
  return mode == 's' or (mode == 'p' and redis.call('ZCARD', H) < (limit or 1))
end

-- Fences after each that is given, for hand-overs in the holder's process; and how far ahead of the clock fences begin,
-- us, where the last one is not known: those before may have been given by another server's clock (fences.lua).
local SPARE, AHEAD = 32, 600000000

-- A fence above every fence ever given in this shard; the spare ones after it are the holder's too. What is
-- kept is the last one itself: it mostly is the server's time, whose text is there already.
local function next_fence()
  local last = redis.call('HGET', F, 'fence')
  local fence = int(math.max(last and last + SPARE + 1 or NOW_US + AHEAD, NOW_US))
  redis.call('HSET', F, 'fence', fence)
  return fence
end

local function grant(me, mode, lease, alone)
  local fence = next_fence()
  -- Who is in mode x is alone, and the key ends with him: usual.lua relies on that.
  put('h' .. TAG[mode] .. me, lease, alone or mode == 'x')
  return fence
end

-- The next number in line, for places and jobs alike. It is a time for the same reason as a fence is:
-- should f be lost, those who come later must still stand behind those who are there.
local function next_seq()
  local seq = math.max(tonumber(redis.call('HGET', F, 'seq') or '0') + 1, NOW_US)
  redis.call('HSET', F, 'seq', int(seq))
  return seq
end

-- A request that runs at once renews its job (direct.lua). One that did not in time has lost its process: it is
-- forgotten with its record if it may run again. Returns 'again' then, 'crashed' if it must not, else nil.
local function look_at_direct(record, id)
  local v = redis.call('HMGET', own('j:' .. id), 'state', 'direct', 'til', 'again', 'owner')
  if v[1] ~= 'running' or v[2] ~= '1' or not v[3] or tonumber(v[3]) > NOW then return nil end
  if v[4] ~= '1' then return 'crashed' end
  redis.call('UNLINK', record, own('j:' .. id))
  redis.call('ZREM', own('n:' .. (v[5] or '')), string.sub(record, #SHARD + 3))
  redis.call(PUBLISH, CHANNEL .. 'c', id)
  return 'again'
end

-- The node whose worker watches the shard; nil if none does.
local function watcher()
  local til, node = string.match(redis.call('GET', WATCH) or '', '^(%d+):(%x+)$')
  if til and tonumber(til) > NOW then return node end
  return nil
end

-- Until when the job is in backoff, by what l says of those that are; nil if it is not.
local function backoff(back, job)
  for til, whose in string.gmatch(back or '', '(%d+) (%x+)') do
    if whose == job and tonumber(til) > NOW then return tonumber(til) end
  end
  return nil
end

-- Sets when a worker should look at this lock, and tells the watcher if it must wake sooner for it. Another lock
-- that is overdue is no reason to be silent: the worker has been there, and may not look again for its sake.
local function arm(at)
  local first = redis.call('ZRANGE', DUE, '0', '0', 'WITHSCORES')
  redis.call('ZADD', DUE, int(at), NAME)
  local soonest = tonumber(first[2] or '0')
  if soonest > NOW and at >= soonest then return end
  local node = watcher()
  if node then redis.call(PUBLISH, CHANNEL .. 'w:' .. node, 'd ' .. NAME) end
end

-- As arm, but a look that is due already stays so, and one that comes sooner too: it ends the passing
-- over of jobs, and traffic must not put it off.
local function arm_by(at)
  local due = redis.call('ZSCORE', DUE, NAME)
  if not due or tonumber(due) > at then arm(at) end
end

-- Tells the processes of all holders that a place (q) or a job (g) joined the line at this sequence, each once.
-- `alone`: the only one, if that is known.
local function tell_holders(which, seq, alone)
  local told = {}
  for _, m in ipairs(alone and {alone} or redis.call('ZRANGE', H, '0', SCAN - 1)) do
    local node = string.match(m, '^h[sp]?%x+:(%x+)$')
    if node and not told[node] then
      told[node] = true
      redis.call(PUBLISH, CHANNEL .. 'w:' .. node, which .. ' ' .. NAME .. ' ' .. int(seq))
    end
  end
end

-- Takes a place out of the line.
local function drop_place(member)
  redis.call('ZREM', Q, member)
  redis.call('HDEL', L, '@' .. string.gsub(member, '^%d+:%a%d*:', ''))
end

-- Puts a place into the line, for ms. While a lock has jobs, l has no end: q's TTL takes away places
-- whose processes died, and leaves their fields. So the first place of a line makes l anew, and fields
-- are left of the line before at most. UNLINK: however many, they cost this script nothing.
local function add_place(me, mode, limit, seq, ms)
  if redis.call('EXISTS', Q) == 0 and redis.call('HLEN', L) > 4 then
    local facts = redis.call('HMGET', L, 'park', 'back', 'bytes', 'past')
    redis.call('UNLINK', L)
    for i, name in ipairs({'park', 'back', 'bytes', 'past'}) do
      if facts[i] then redis.call('HSET', L, name, facts[i]) end
    end
  end
  local member = int(NOW + ms) .. ':' .. mode .. (mode == 'p' and int(limit) or '') .. ':' .. me
  redis.call('ZADD', Q, int(seq), member)
  keep_ttl(Q, ms)
  redis.call('HSET', L, '@' .. me, member)
  if redis.call('EXISTS', G) == 1 then redis.call('PERSIST', L) else keep_ttl(L, ms) end
end

-- First place whose process may still be waiting: sequence, '<nonce>:<node>', member, mode, limit. A place
-- of a mode that this version does not know stands in line like any other, but is nobody it could offer to;
-- and so does the one behind more dead places than a script may look at: it may be alive, and is not passed.
local function live_head()
  for _ = 1, SCAN do
    local e = redis.call('ZRANGE', Q, '0', '0', 'WITHSCORES')
    if #e == 0 then return nil end
    local deadline, mode, limit, me = string.match(e[1], '^(%d+):(%a)(%d*):(%x+:%x+)$')
    if deadline and tonumber(deadline) > NOW then
      return tonumber(e[2]), TAG[mode] and me or nil, e[1], mode, tonumber(limit)
    end
    drop_place(e[1])
  end
  local e = redis.call('ZRANGE', Q, '0', '0', 'WITHSCORES')
  if #e > 0 then return tonumber(e[2]) end
  return nil
end

-- First job, with its sequence and the watcher, unless the jobs are passed over: an offer to them lapsed, the first
-- one is in backoff, or no worker watches the shard. Then nil, the one that is hidden, and what l says of a backoff.
local function jobs_head()
  local e = redis.call('ZRANGE', G, '0', '0', 'WITHSCORES')
  if #e == 0 then return nil end
  local v = redis.call('HMGET', L, 'park', 'back')
  local node = not (v[1] and tonumber(v[1]) <= NOW) and not backoff(v[2], e[1]) and watcher()
  if not node then return nil, e[1], v[2] end
  return tonumber(e[2]), e[1], node
end

-- The lock is offered for one accept window to whoever is at the head of its line and fits beside those
-- who are in: one writer, the leading run of readers, as many as there are permits. A live place leaves
-- the line (a dead one would block everybody); a job stays, and is parked unless a worker claims it.
local function move_on(free)
  for _ = 1, SCAN do
    local last, held
    if not free then last, held = held_until() end
    free = false
    if held == 'x' then return end
    local seq, me, member, mode, limit = live_head()
    local job_seq, job, more = jobs_head()
    if seq and (not job_seq or seq < job_seq) then
      if not me or not fits(mode, limit, held) then return end
      drop_place(member)
      put('o' .. TAG[mode] .. me, ACCEPT)
      redis.call(PUBLISH, CHANNEL .. 'w:' .. string.match(me, ':(%x+)$'), 'o ' .. NAME .. ' ' .. me)
      if redis.call('EXISTS', G) == 1 then arm_by(NOW + ACCEPT) end
      if mode == 'x' then return end
    elseif last then
      return
    elseif job_seq then
      put('j' .. job, ACCEPT)
      redis.call('HSET', L, 'park', int(NOW + ACCEPT))
      redis.call('ZADD', DUE, int(NOW), NAME)
      redis.call(PUBLISH, CHANNEL .. 'w:' .. more, 'j ' .. NAME .. ' ' .. job)
      return
    else
      -- Hidden jobs on a free lock: a worker looks when it comes, or when the backoff is over.
      if job then arm(backoff(more, job) or NOW) end
      return
    end
  end
end

-- What a request that was not let in is told: ms until the deadline it waits for, length of the line. That
-- is the last one, unless nothing but permits is wanting: then the one that leaves fewer than there may be.
local function busy_for(mode, limit)
  local last, held = held_until()
  if held == 'p' and mode == 'p' then
    local over = redis.call('ZCARD', H) - limit
    if over >= 0 then last = tonumber(redis.call('ZRANGE', H, over, over, 'WITHSCORES')[2]) end
  end
  last = last or NOW + ACCEPT
  return int(math.max(last - NOW, 1)), redis.call('ZCARD', Q) + redis.call('ZCARD', G)
end
