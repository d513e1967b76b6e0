-- One turn of a worker: ends runs, takes back those whose lease is over, and starts what is due.
--
-- KEYS z, zl, zt, zm, zu, zd, zw, zf of the queue, zr of the worker
-- ARGV[1] channel prefix   [2] '<node>:<worker>'   [3] worker   [4] number of the turn   [5] runs wanted
-- [6] lease, us   [7] most that run at once, 0 any   [8] us between two starts, 0 any   [9] starts at once
-- [10] us it may be idle, 0 = it is not to be woken   [11] '1' it stands in zw   [12] us dead letters are kept
-- [13] most of them   [14] crashes that kill   then each end: 'd' run, bytes, unique
--   | 'r' retry / 'k' dead / 'b' back: run, bytes, unique, delay us, fault, reason
-- Returns {'1' or '0' (lost) per end, us until it should look again or -1, '1' it stands in zw now,
--   then each run: id, attempt, record}
-- O((ends + runs + taken back) * log n), at most 100 of each. Idempotent: zr has the number of the worker's last turn
-- and what it was told. A run is its owner's while '<id><worker>.<turn>' stands in zl: whoever comes late finds that
-- it does not. Where a caller has gone, its runs are taken back when their leases end.
local Z, L, T, M, U, D, W, F, R = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local channel, me, worker, number, want = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local lease, most, interval, burst = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local idle, listed, keep, graves, crashes = tonumber(ARGV[10]), ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local token = worker .. '.' .. ARGV[4]
local PAGE = 100

local function attempt_of(meta) return tonumber(string.match(meta or '0', '^%d+')) + 1 end
local last = call('GET', R)
if last then
  local before, stood, ids = string.match(last, '^(%d+) (%d*) (.*)$')
  before = tonumber(before) or 0
  -- A turn that comes after its successor: nobody waits for it.
  if before > number then return {'', -1, '0'} end
  if before == number then
    local out = {stood, 0, call('ZSCORE', W, me) and '1' or '0'}
    for i = 1, #ids, ID do
      local id = string.sub(ids, i, i + ID - 1)
      local record = call('ZSCORE', L, id .. token) and call('HGET', T, id)
      if record then
        local n = #out
        out[n + 1], out[n + 2], out[n + 3] = id, attempt_of(call('HGET', M, id)), record
      end
    end
    return out
  end
end

local NUMBERS = {'seq', 'bytes', 'done', 'failed', 'panicked', 'crashed', 'dead', 'trimmed', 'lost', 'tat', 'swept'}
local facts = call('HMGET', F, 'paused', 'guard', unpack(NUMBERS))
local paused, guard, guarded = facts[1], guard_of(facts[2])
local count, changed, sooner = {}, {}, nil
for i, field in ipairs(NUMBERS) do count[field] = tonumber(facts[i + 2] or '0') or 0 end
local function set(field, value) count[field], changed[field] = value, value end
local function add(field, n) set(field, count[field] + n) end
local COUNTED = {f = 'failed', u = 'failed', p = 'panicked', c = 'crashed'}

-- Where it waits again, and from when on.
local function wait_again(id, at)
  call('ZADD', Z, at, id)
  if not sooner or at < sooner then sooner = at end
end
local function tail(delay)
  set('seq', place_after(count.seq))
  return count.seq + delay
end
local function forget(ids, bytes)
  call('HDEL', T, unpack(ids))
  call('HDEL', M, unpack(ids))
  add('bytes', -bytes)
end
local function give_up(unique, id)
  if unique ~= '' and call('HGET', U, unique) == id then call('HDEL', U, unique) end
end
-- Notes what went wrong; attempts and crashes so far.
local function note(id, fault, reason)
  local attempts, crashed, history = string.match(call('HGET', M, id) or '', '^(%d+) (%d+)\n(.*)$')
  attempts, crashed = tonumber(attempts or '0') + 1, tonumber(crashed or '0') + (fault == 'c' and 1 or 0)
  history = (history or '') .. int(now) .. ' ' .. fault .. ' ' .. reason .. '\n'
  local _, lines = string.gsub(history, '\n', '')
  for _ = HISTORY + 1, lines do history = string.gsub(history, '^[^\n]*\n', '', 1) end
  call('HSET', M, id, attempts .. ' ' .. crashed .. '\n' .. history)
  add(COUNTED[fault] or 'failed', 1)
  return attempts, crashed
end
local function trim(ids)
  if #ids == 0 then return end
  call('ZREM', D, unpack(ids))
  call('HDEL', T, unpack(ids))
  call('HDEL', M, unpack(ids))
  add('trimmed', #ids)
end
local function bury(id, bytes, unique)
  give_up(unique, id)
  call('ZADD', D, now + keep + count.dead % 1000, id)
  add('dead', 1)
  add('bytes', -bytes)
  if call('ZCARD', D) > graves then trim(call('ZRANGE', D, 0, 0)) end
end

local function read_ends()
  local ends, members, a = {}, {}, 15
  while ARGV[a] do
    local e = {kind = ARGV[a], run = ARGV[a + 1], bytes = tonumber(ARGV[a + 2]), unique = ARGV[a + 3]}
    e.id = string.sub(e.run, 1, ID)
    if e.kind == 'd' then
      a = a + 4
    else
      e.delay, e.fault, e.reason, a = tonumber(ARGV[a + 4]), ARGV[a + 5], ARGV[a + 6], a + 7
    end
    ends[#ends + 1], members[#members + 1] = e, e.run
  end
  return ends, members
end
local function finish(e)
  if e.kind == 'b' then
    -- It is first again: it has been waiting since it was pushed.
    local at = string.match(call('HGET', T, e.id) or '', '^%d+')
    wait_again(e.id, e.delay > 0 and now + e.delay or min(tonumber(at or now), now))
  else
    note(e.id, e.fault, e.reason)
    if e.kind == 'r' then wait_again(e.id, tail(e.delay)) else bury(e.id, e.bytes, e.unique) end
  end
end
local function end_runs()
  local ends, members = read_ends()
  if #ends == 0 then return '' end
  local held, stood, gone, done, bytes = call('ZMSCORE', L, unpack(members)), {}, {}, {}, 0
  for i, e in ipairs(ends) do
    stood[i] = held[i] and '1' or '0'
    if held[i] then
      gone[#gone + 1] = e.run
      if e.kind == 'd' then
        done[#done + 1], bytes = e.id, bytes + e.bytes
        give_up(e.unique, e.id)
      end
    end
  end
  if #gone > 0 then call('ZREM', L, unpack(gone)) end
  if #done > 0 then
    forget(done, bytes)
    add('done', #done)
  end
  for i, e in ipairs(ends) do
    if held[i] and e.kind ~= 'd' then finish(e) end
  end
  return table.concat(stood)
end

-- Runs whose lease is over: their worker has died, or has stood still for too long.
local function take_back()
  local first = call('ZRANGE', L, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) > now then return end
  local members = call('ZRANGEBYSCORE', L, '-inf', now, 'LIMIT', 0, PAGE)
  call('ZREM', L, unpack(members))
  for _, member in ipairs(members) do
    local id = string.sub(member, 1, ID)
    local record = call('HGET', T, id)
    local again, limit, unique = string.match(record or '', '^%d+ (%d) (%d+) ([^\n]*)\n')
    if not record then
      add('lost', 1)
    else
      local attempts, crashed = note(id, 'c', 'crashed, may have run')
      if again == '0' or attempts >= tonumber(limit or '0') or crashed >= crashes then
        bury(id, #record, unique or '')
      else
        wait_again(id, tail(0))
      end
    end
  end
end

-- How many may be started now, and when there may be more if that is known.
local function room()
  local n, later = want, nil
  if paused then return 0 end
  if most > 0 then n = min(n, max(most - call('ZCARD', L), 0)) end
  if interval > 0 then
    -- A debt in time: each start owes one interval. No debt is ever more than the burst's: the clock was put back.
    set('tat', min(max(count.tat, now), now + burst * interval))
    local free = floor((now + burst * interval - count.tat) / interval)
    if free < n then n, later = free, count.tat - (burst - 1) * interval end
  end
  return n, later
end
local function start(ids)
  local records, metas = call('HMGET', T, unpack(ids)), call('HMGET', M, unpack(ids))
  local out, leases, begun = {}, {}, {}
  call('ZREM', Z, unpack(ids))
  for i, id in ipairs(ids) do
    if records[i] then
      local n = #begun
      begun[n + 1] = id
      leases[2 * n + 1], leases[2 * n + 2] = now + lease, id .. token
      out[3 * n + 1], out[3 * n + 2], out[3 * n + 3] = id, metas[i] and attempt_of(metas[i]) or 1, records[i]
    else
      add('lost', 1)
    end
  end
  if #begun > 0 then
    call('ZADD', L, unpack(leases))
    if interval > 0 then set('tat', count.tat + #begun * interval) end
  end
  return out, begun
end
local function sweep()
  if now - count.swept < 1000000 and now >= count.swept then return end
  set('swept', now)
  trim(call('ZRANGEBYSCORE', D, '-inf', now, 'LIMIT', 0, PAGE))
  -- What a record that vanished was counted as is not known: nothing left is nothing counted.
  if count.bytes ~= 0 and call('ZCARD', Z) == 0 and call('ZCARD', L) == 0 then set('bytes', 0) end
end

local stood = end_runs()
take_back()
local free, later = room()
local heads = call('ZRANGE', Z, 0, free, 'WITHSCORES')
local ids, event = {}, nil
for i = 1, #heads, 2 do
  local due = tonumber(heads[i + 1])
  if due <= now and #ids < free then ids[#ids + 1] = heads[i] else event = event or due end
end
local out, begun = {}, {}
if #ids > 0 then out, begun = start(ids) end
sweep()

-- More is due than this one has taken.
local left = event and event <= now
-- What nobody may start now is no reason to look again.
local held = left and (paused or #ids >= free and free < want)
if paused then event = nil end
if held then event = later end
local spare, wait = want - #begun, -1
if idle > 0 and spare > 0 then
  local lapse = call('ZRANGE', L, 0, 0, 'WITHSCORES')[2]
  if lapse then event = min(event or tonumber(lapse), tonumber(lapse)) end
  if listed == '0' then call('ZADD', W, now + idle, me) end
  listed = '1'
  -- One of the idle ones has the timer. The others are told, or look when it has not been heard of.
  if event and (not guard or guard == me or event < guarded) then
    call('HSET', F, 'guard', int(now + idle) .. ' ' .. int(event) .. ' ' .. me)
    wait = max(event - now, 0)
  end
else
  if listed == '1' then call('ZREM', W, me) end
  listed = '0'
  if guard == me then
    call('HDEL', F, 'guard')
    guard = nil
    if event then wake(W, channel) end
  elseif left and not held then
    wake(W, channel)
  elseif sooner and event and event == sooner then
    tell_sooner(W, guard, channel)
  end
end

local words, n = {}, 0
for field, value in pairs(changed) do
  words[n + 1], words[n + 2], n = field, value, n + 2
end
if n > 0 then call('HSET', F, unpack(words)) end
call('SET', R, ARGV[4] .. ' ' .. stood .. ' ' .. table.concat(begun), 'PX', int(lease / 1000 + 600000))
return {stood, int(wait), listed, unpack(out)}
