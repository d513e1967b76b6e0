-- One turn of a worker: ends runs, takes back those whose lease is over, and starts what is due.
--
-- KEYS z of the queue, zr of the worker. The queue's other names are made of the first.
-- ARGV[1] in one text: '<node>:<worker>.<number of the turn>'; one more than the runs wanted; '1' if it stands in zw;
-- '1' if there is an end that is no mere success; lease, us; ms that zr lives; us it may be idle, 0 = it is not to be woken; most that run at once, 0 any; us between two starts, 0
-- any; starts at once; us dead letters are kept; most of them; most bytes of them; crashes that kill. Then each end: its
-- terms in one text, and the run: 'd' bytes | 'r' retry / 'k' dead / 'b' back: bytes, delay us, fault, reason; with a
-- unique key the letter is a capital, and the key follows.
-- Returns {'1' or '0' (lost) per end, us until it should look again or -1, '1' it stands in zw now, '2' and nothing
--   waits, runs, or is to be thrown away,
--   then each run: id, attempt, record}: no more of them than BYTES of records, but one in any case; who could have
--   had more is to look again at once, as if more leases are over than were seen to
-- O((ends + runs + taken back) * log n), at most 100 of each, and BYTES of their records; of those that are handed back
-- without a delay the caller sends no more than that. Idempotent: zr has the number of the worker's last turn
-- and what it was told. A run is its owner's while '<id><worker>.<turn>' stands in zl: whoever comes late finds that
-- it does not. Where a caller has gone, its runs are taken back when their leases end.
-- What is rare (an end that is no mere success, a lease that is over, limits, once a second the sweep) is done by
-- functions that are only made then.
-- Of a task whose record has vanished nothing is left where that is seen, but what is its alone.
local match, sub, byte = string.match, string.sub, string.byte
local Z, R = KEYS[1], KEYS[2]
local cut = string.find(Z, '}:z:', 1, true)
local tag, name = sub(Z, 1, cut + 1), sub(Z, cut + 3)
local L, T, M, F, W = tag .. 'zl' .. name, tag .. 'zt' .. name, tag .. 'zm' .. name, tag .. 'zf' .. name, tag .. 'zw' .. name
local me, token, rows, listed, mixed, terms = match(ARGV[1], '^([^:]*:%x*)(%.%d+) (%d+) (%d) (%d) (.*)$')
local lease, life, idle
lease, life, idle, terms = match(terms, '^(%d+) (%d+) (%d+) (.*)$')
local number, want = sub(token, 2), rows - 1
token = match(me, '%x*$') .. token
local limited = sub(terms, 1, 4) ~= '0 0 '
-- How many records are read at once.
local PORTION = 16

local last = call('GET', R)
if last then
  local before, stood, ids = match(last, '^(%d+) (%d*) (.*)$')
  -- A turn that comes after its successor: nobody waits for it.
  if #before > #number or #before == #number and before > number then return {'', '-1', '0'} end
  if before == number then
    local out = {stood, '0', call('ZSCORE', W, me) and '1' or '0'}
    for i = 1, #ids, ID do
      local id = sub(ids, i, i + ID - 1)
      local record = call('ZSCORE', L, id .. token) and call('HGET', T, id)
      if record then
        local n = #out
        out[n + 1], out[n + 2], out[n + 3] = id, match(call('HGET', M, id) or '0', '^%d+') + 1, record
      end
    end
    return out
  end
end

local facts = call('HMGET', F, 'paused', 'guard', 'swept')
local paused, guard, guarded = facts[1], nil, 0
if facts[2] then guard, guarded = guard_of(facts[2]) end
-- When the soonest of those that wait again is due; whether anything has gone wrong with any task: mostly not,
-- and zm is not there.
local sooner, noted
local swept = tonumber(facts[3]) or 0
local sweeps = now - swept >= 1000000 or now < swept
-- An idle queue has nothing at all, mostly: then there is nothing to look at, either.
local empty = sweeps and not ARGV[2] and call('EXISTS', Z, L, tag .. 'zd' .. name) == 0
local lapse = not empty and call('ZRANGE', L, '0', '0', 'WITHSCORES')[2]
local lapsed = lapse and tonumber(lapse) <= now
local rare = {}
if sweeps or lapsed or limited or mixed == '1' then
  local most, interval, burst, keep, graves, heavy, crashes = match(terms, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local U, D, PAGE = tag .. 'zu' .. name, tag .. 'zd' .. name, 100
  local COUNTED = {f = 'failed', u = 'failed', p = 'panicked', c = 'crashed'}
  local function get(field) return tonumber(call('HGET', F, field) or '0') or 0 end
  local function add(field, n) call('HINCRBY', F, field, int(n)) end
  -- Where it waits again, and from when on.
  local function wait_again(id, at)
    call('ZADD', Z, int(at), id)
    if not sooner or at < sooner then sooner = at end
  end
  local function tail(delay)
    local seq = place_after(get('seq'))
    call('HSET', F, 'seq', int(seq))
    return seq + delay
  end
  function rare.give_up(unique, id)
    if unique and call('HGET', U, unique) == id then call('HDEL', U, unique) end
  end
  -- Notes what went wrong; attempts and crashes so far.
  local function note(id, fault, reason)
    local attempts, crashed, history = match(call('HGET', M, id) or '', '^(%d+) (%d+)\n(.*)$')
    attempts, crashed = tonumber(attempts or '0') + 1, tonumber(crashed or '0') + (fault == 'c' and 1 or 0)
    history = (history or '') .. int(now) .. ' ' .. fault .. ' ' .. reason .. '\n'
    local _, lines = string.gsub(history, '\n', '')
    for _ = HISTORY + 1, lines do history = string.gsub(history, '^[^\n]*\n', '', 1) end
    call('HSET', M, id, attempts .. ' ' .. crashed .. '\n' .. history)
    noted = true
    add(COUNTED[fault] or 'failed', 1)
    return attempts, crashed
  end
  local function trim(ids)
    if #ids == 0 then return end
    local bytes = 0
    for _, id in ipairs(ids) do bytes = bytes + call('HSTRLEN', T, id) end
    add('buried', -bytes)
    call('ZREM', D, unpack(ids))
    call('HDEL', T, unpack(ids))
    call('HDEL', M, unpack(ids))
    add('trimmed', #ids)
  end
  -- The oldest go while there are too many, or too large ones: so many in a call, the others in the next. The newest
  -- stays where there is another one, also if its time ends first: nobody has seen it yet.
  local trims = PAGE
  local function make_room(newest)
    while trims > 0 and (call('ZCARD', D) > tonumber(graves) or get('buried') > tonumber(heavy)) do
      local first = call('ZRANGE', D, '0', '1')
      -- What a record that vanished was counted as is not known: nothing left is nothing counted.
      if not first[1] then return call('HSET', F, 'buried', '0') end
      trims = trims - 1
      trim({first[1] == newest and first[2] or first[1]})
    end
  end
  -- Each letter has a microsecond of its own: a page ends behind one, and another of the same would be on none. Mostly
  -- it is free at once; those of one call follow each other.
  local grave = now + keep
  local function bury(id, bytes, unique)
    rare.give_up(unique, id)
    for _ = 1, 1000 do
      if call('ZCOUNT', D, int(grave), int(grave)) == 0 then break end
      grave = grave + 1
    end
    call('ZADD', D, int(grave), id)
    grave = grave + 1
    add('dead', 1)
    add('bytes', -bytes)
    add('buried', call('HSTRLEN', T, id))
    make_room(id)
  end
  function rare.finish(e)
    local delay, fault, reason = match(e.rest, '^ (%d+) (%a?) (.*)$')
    delay = tonumber(delay)
    if e.kind == 'b' then
      local at = now + delay
      -- It is first again: it has been waiting since it was pushed.
      if delay == 0 then at = min(tonumber(match(call('HGET', T, e.id) or '', '^%d+') or now), now) end
      wait_again(e.id, at)
    else
      note(e.id, fault, reason)
      if e.kind == 'r' then wait_again(e.id, tail(delay)) else bury(e.id, e.bytes, e.unique) end
    end
  end
  -- Runs whose lease is over: their worker has died, or has stood still for too long. True if there may be more of them.
  function rare.take_back()
    local over = call('ZRANGEBYSCORE', L, '-inf', int(now), 'LIMIT', '0', PAGE)
    local members, bytes = {}, 0
    for i, member in ipairs(over) do
      bytes = bytes + call('HSTRLEN', T, sub(member, 1, ID))
      if i > 1 and bytes > BYTES then break end
      members[i] = member
    end
    if members[1] then call('ZREM', L, unpack(members)) end
    for i, member in ipairs(members) do
      local id = sub(member, 1, ID)
      local record = call('HGET', T, id)
      local again, limit, unique = match(record or '', '^%d+ (%d) (%d+) ([^ \n]*)')
      if not record then
        call('HDEL', M, id)
        add('lost', 1)
      else
        local attempts, crashed = note(id, 'c', 'crashed, may have run')
        if again == '0' or attempts >= tonumber(limit or '0') or crashed >= tonumber(crashes) then
          bury(id, #record, unique)
        else
          -- In their order, and all of them due.
          wait_again(id, now - #members + i)
        end
      end
    end
    return #members < #over or #over == PAGE
  end
  -- How many may be started now, and when there may be more if that is known.
  function rare.room()
    local n, later = want, nil
    if most ~= '0' then n = min(n, max(most - call('ZCARD', L), 0)) end
    if interval ~= '0' then
      -- A debt in time: each start owes one interval. No debt is ever more than the burst's: the clock was put back.
      local known = get('tat')
      rare.tat = min(max(known, now), now + burst * interval)
      if rare.tat < known then call('HSET', F, 'tat', int(rare.tat)) end
      local free = floor((now + burst * interval - rare.tat) / interval)
      if free < n then n, later = free, rare.tat - (burst - 1) * interval end
    end
    return n, later
  end
  function rare.started(n)
    if interval ~= '0' then call('HSET', F, 'tat', int(rare.tat + n * interval)) end
  end
  function rare.sweep()
    call('HSET', F, 'swept', int(now))
    if empty then
      local books = call('HMGET', F, 'bytes', 'buried')
      if tonumber(books[2] or '0') > tonumber(heavy) then make_room() end
      rare.more = trims == 0
      if tonumber(books[1] or '0') ~= 0 then call('HSET', F, 'bytes', '0') end
      return
    end
    local over = call('ZRANGEBYSCORE', D, '-inf', int(now), 'LIMIT', '0', PAGE)
    trim(over)
    make_room()
    -- There may be more to throw away: by the next turn, which is to come soon.
    rare.more = #over == PAGE or trims == 0
    -- What a record that vanished was counted as is not known: nothing left is nothing counted.
    if call('EXISTS', Z, L) == 0 and get('bytes') ~= 0 then call('HSET', F, 'bytes', '0') end
  end
end

-- Without room it goes on as well, and makes some (see renew.lua). Where a run has ended well, what ends it does that.
if mixed == '1' or not ARGV[2] then call('ZREM', L, '') end
local stood = ''
if mixed == '0' and not ARGV[4] then
  -- At most one, which was a success.
  if ARGV[2] then
    local run = ARGV[3]
    stood = tostring(call('ZREM', L, run))
    if stood == '1' then
      local id = sub(run, 1, ID)
      call('HDEL', T, id)
      noted = call('EXISTS', M) == 1
      if noted then call('HDEL', M, id) end
      call('HINCRBY', F, 'bytes', '-' .. sub(ARGV[2], 2))
      call('HINCRBY', F, 'done', '1')
    end
  end
else
  local ends, members, gone, done, bytes, a, told = {}, {}, {}, {}, 0, 2, {}
  while ARGV[a] do
    local letter, length, rest = match(ARGV[a], '^(%a)(%d+)(.*)$')
    local run, kind = ARGV[a + 1], string.lower(letter)
    local e = {kind = kind, run = run, id = sub(run, 1, ID), bytes = tonumber(length), rest = rest}
    a = a + 2
    if letter ~= kind then e.unique, a = ARGV[a], a + 1 end
    ends[#ends + 1], members[#members + 1] = e, run
  end
  local held = call('ZMSCORE', L, unpack(members))
  for i, e in ipairs(ends) do
    told[i] = held[i] and '1' or '0'
    if held[i] then
      gone[#gone + 1] = e.run
      if e.kind == 'd' then
        done[#done + 1], bytes = e.id, bytes + e.bytes
        if e.unique then rare.give_up(e.unique, e.id) end
      end
    end
  end
  stood = table.concat(told)
  call('ZREM', L, unpack(gone[1] and gone or {''}))
  if done[1] then
    call('HDEL', T, unpack(done))
    noted = call('EXISTS', M) == 1
    if noted then call('HDEL', M, unpack(done)) end
    call('HINCRBY', F, 'bytes', bytes > 0 and int(-bytes) or '0')
    call('HINCRBY', F, 'done', int(#done))
  end
  for i, e in ipairs(ends) do
    if held[i] and e.kind ~= 'd' then rare.finish(e) end
  end
end
local lapses = lapsed and rare.take_back()

local free, later = want, nil
if paused then
  free, rows = 0, '1'
elseif limited then
  free, later = rare.room()
  rows = int(free + 1)
end
local us = time[2]
local stamp = time[1] .. (#us == 6 and us or sub('00000' .. us, -6))
-- One more than may be started: whether any is left.
local ids = empty and {} or call('ZRANGEBYSCORE', Z, '-inf', stamp, 'LIMIT', '0', rows)
local left = #ids > free
if left then ids[#ids] = nil end
local begun, begins, out, cut = '', 0, nil, false
if ids[1] then
  if noted == nil then noted = call('EXISTS', M) == 1 end
  local til = int(now + lease)
  -- How many have left the line, and whether it was the bytes that left the others there.
  local seen = 1
  if not ids[2] then
    local id = ids[1]
    local record = call('HGET', T, id)
    call('ZREM', Z, id)
    if record then
      local attempt = noted and match(call('HGET', M, id) or '0', '^%d+') + 1 or '1'
      begun, begins, out = id, 1, {id, attempt, record}
      call('ZADD', L, til, id .. token)
    elseif noted then
      call('HDEL', M, id)
    end
  else
    local records, metas, all, leases, bytes, first = {}, {}, {}, {}, 0, 1
    out, seen = {}, 0
    for i, id in ipairs(ids) do
      if i == first + #records then
        first = i
        local final = min(i + PORTION - 1, #ids)
        records = call('HMGET', T, unpack(ids, i, final))
        metas = noted and call('HMGET', M, unpack(ids, i, final)) or metas
      end
      local record, n = records[i - first + 1], begins
      if record then
        bytes = bytes + #record
        cut = n > 0 and bytes > BYTES
        if cut then break end
        begins, all[n + 1] = n + 1, id
        leases[2 * n + 1], leases[2 * n + 2] = til, id .. token
        out[3 * n + 1], out[3 * n + 2], out[3 * n + 3] = id, match(metas[i - first + 1] or '0', '^%d+') + 1, record
      elseif noted then
        call('HDEL', M, id)
      end
      seen = i
    end
    call('ZREM', Z, unpack(ids, 1, seen))
    begun = table.concat(all)
    if begins > 0 then call('ZADD', L, unpack(leases)) end
  end
  if begins < seen then call('HINCRBY', F, 'lost', int(seen - begins)) end
  if limited and begins > 0 then rare.started(begins) end
end
if sweeps then rare.sweep() end

-- Where more leases are over, that is looked at again at once, whatever else there is.
cut = cut or lapses
left = left or cut
-- What nobody may start now is no reason to look again.
local spare, wait = cut and 0 or want - begins, cut and '0' or '-1'
local held, idles = left and not cut and (paused or free < want), spare > 0 and idle ~= '0'
-- What comes next: of those that are left, one that is due.
local event = left and now or nil
if not left and not empty and not paused and (idles or sooner or guard == me) then
  event = tonumber(call('ZRANGE', Z, '0', '0', 'WITHSCORES')[2])
end
if held then event = not paused and later or nil end
if idles then
  lapse = not empty and tonumber(call('ZRANGE', L, '0', '0', 'WITHSCORES')[2])
  if lapse then event = min(event or lapse, lapse) end
  -- Also if it stands there: its time there would be over before its next look, and nobody would wake it.
  call('ZADD', W, int(now + idle), me)
  listed = (event or left or paused or rare.more) and '1' or '2'
  -- One of the idle ones has the timer. The others are told, or look when it has not been heard of.
  if event and (not guard or guard == me or event < guarded) then
    call('HSET', F, 'guard', int(now + idle) .. ' ' .. int(event) .. ' ' .. me)
    wait = int(max(event - now, 0))
  end
else
  -- One that stops is not to be told anything, whatever it knows of its place.
  if listed == '1' or idle == '0' then call('ZREM', W, me) end
  listed = '0'
  if guard == me then
    call('HDEL', F, 'guard')
    if event then wake_one(W) end
  elseif left and not held then
    wake_one(W)
  elseif sooner and event and event == sooner then
    local _, tell_sooner = tellers(W)
    tell_sooner(guard)
  end
end
call('SET', R, number .. ' ' .. stood .. ' ' .. begun, 'PX', life)
if begins == 1 then return {stood, wait, listed, out[1], out[2], out[3]} end
return {stood, wait, listed, unpack(out or {})}
