-- Stores tasks; those of one queue that come one after the other are a group.
--
-- KEYS a group: z of the queue, zp of this process and the shard; then of each task with a window its zu:<unique>.
-- The queue's other names are made of the first: each that is declared costs as much as to make it.
-- ARGV a group: number of tasks, most that may wait, most bytes, in one text; then a task: id; its terms, in one text:
-- number, its slot, delay us, '-' | 'p' unique while pending | 'w' unique in a window, ms; unless it is '-', its unique
-- key; the record but for its time
-- Returns a letter for each task: '1' stored, 'f' full, 'k' its unique key is another's, '?' nobody knows
-- whether it ran before, '!' the store's data are not ours; then the ids for 'k', in order. A text, if there are none.
-- Or what the server will do for nobody (READONLY, OOM, ..), as the call's error: nothing of it was stored.
-- O(tasks * log n), at most 100. Idempotent: zp has the numbers of this process's last pushes, each in its slot, so one
-- that is sent again is not stored again, even if the task has ended meanwhile. One that was refused may be stored when
-- it comes again: whoever sent more than one copy takes 'f' and 'k' for an unknown outcome.
if one then
  call('HSET', one.F, 'woke', int(now))
  if not one.sooner then
    wake_one(one.W)
  else
    local _, tell_sooner = tellers(one.W)
    tell_sooner(guard_of(call('HGET', one.F, 'guard')))
  end
  return '1'
end

local TERMS = '^(%d+) (%d+) (%d+) (%S)(%d*)$'
-- zp begins with the second in which its life was prolonged: not each push has to.
local LIFE, RENEWED = 600, 60
local flags, others, k, a = {}, {}, 0, 0

-- The numbers that stood in the slots of these tasks' numbers: which of them have been stored before.
local function before(P, tasks)
  local words = {'GET', 'u40', '#0'}
  for i, t in ipairs(tasks) do
    local at = i * 4
    words[at], words[at + 1], words[at + 2], words[at + 3] = 'SET', 'u40', '#' .. t.slot, t.number
  end
  local stood = call('BITFIELD', P, unpack(words))
  local second = floor(now / 1000000)
  if stood[1] > second or stood[1] < second - RENEWED then
    call('BITFIELD', P, 'SET', 'u40', '#0', int(second))
    call('EXPIRE', P, LIFE)
  end
  return stood
end

-- The task that has what is this one's alone, if it is another; if none has, this one has it, where there is room.
local function other(t, T, U, stored, fits)
  if t.kind == 'p' then
    local id = call('HGET', U, t.unique)
    if id and id ~= t.id and (stored[id] or call('HEXISTS', T, id) == 1) then return id end
    if fits then call('HSET', U, t.unique, t.id) end
  else
    local id = call('GET', t.window)
    if id and id ~= t.id then return id end
    if fits then call('SET', t.window, t.id, 'PX', t.life) end
  end
end

local function group(Z, P, tasks, most, room)
  local at = string.find(Z, '}:z:', 1, true)
  local tag, name = string.sub(Z, 1, at + 1), string.sub(Z, at + 3)
  local T, F = tag .. 'zt' .. name, tag .. 'zf' .. name
  local f = call('HMGET', F, 'seq', 'bytes', 'pushed', 'woke')
  local seq, bytes, pushed, woke = tonumber(f[1] or '0'), tonumber(f[2] or '0'), tonumber(f[3] or '0'), tonumber(f[4] or '0')
  local waiting, stood, mine = call('ZCARD', Z), before(P, tasks), {}
  tasks.stood = stood
  local records, places, told, n, text = {}, {}, {}, 0, nil
  for i, t in ipairs(tasks) do
    local letter, old, number = '1', stood[i + 1], tonumber(t.number)
    local length = #t.record + 16
    if old > number then
      letter = call('HEXISTS', T, t.id) == 1 and '1' or '?'
    elseif old < number then
      -- A full queue has those that it has: whoever pushes one of them is told so.
      local fits = waiting + n < most and bytes + length <= room
      local id = t.kind ~= '-' and other(t, T, tag .. 'zu' .. name, mine, fits)
      if id then
        letter = 'k'
        others[#others + 1] = id
      elseif not fits then
        letter = 'f'
      else
        seq, bytes = place_after(seq), bytes + length
        mine[t.id], n, text = true, n + 1, int(seq)
        records[2 * n - 1], records[2 * n] = t.id, string.sub('0000000000000000', #text + 1) .. text .. t.record
        places[2 * n - 1], places[2 * n] = t.delay == '0' and text or int(seq + t.delay), t.id
      end
    end
    -- What was not stored may be, when it comes again; what was stored before it, or after it where this is a copy that comes
    -- late, is known still.
    if letter == 'f' or letter == 'k' or old > number then call('BITFIELD', P, 'SET', 'u40', '#' .. t.slot, int(old)) end
    told[i] = letter
  end
  if n == 0 then return told end
  call('HSET', T, unpack(records))
  call('ZADD', Z, unpack(places))
  local head = call('ZRANGE', Z, '0', '0', 'WITHSCORES')
  local due = tonumber(head[2])
  local first, late = mine[head[1]], due < now - 50000 and woke < now - 50000
  if not first and not late then
    call('HSET', F, 'seq', text, 'bytes', int(bytes), 'pushed', int(pushed + n))
    return told
  end
  call('HSET', F, 'seq', text, 'bytes', int(bytes), 'pushed', int(pushed + n), 'woke', int(now))
  local W = tag .. 'zw' .. name
  if first and due > now then
    local _, tell_sooner = tellers(W)
    tell_sooner(guard_of(call('HGET', F, 'guard')))
  else
    wake_one(W)
  end
  return told
end

while ARGV[a + 1] do
  local count, most, room = string.match(ARGV[a + 1], '^(%d+) (%d+) (%d+)$')
  local Z, P, tasks = KEYS[k + 1], KEYS[k + 2], {}
  k, a = k + 2, a + 1
  for i = 1, tonumber(count) do
    local t = {id = ARGV[a + 1]}
    t.number, t.slot, t.delay, t.kind, t.life = string.match(ARGV[a + 2], TERMS)
    a = a + 2
    if t.kind ~= '-' then t.unique, a = ARGV[a + 1], a + 1 end
    if t.kind == 'w' then t.window, k = KEYS[k + 1], k + 1 end
    t.record, a = ARGV[a + 1], a + 1
    tasks[i] = t
  end
  local well, told = pcall(group, Z, P, tasks, tonumber(most), tonumber(room))
  if not well then
    local text = type(told) == 'table' and told.err or tostring(told)
    -- What is wrong with the server is wrong for all of them. It says so before the first write of a script, or not at
    -- all: nothing is stored.
    for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
      local from = string.find(text, code, 1, true)
      if from then return redis.error_reply(string.sub(text, from)) end
    end
    -- None of them is to be known as stored.
    for i, t in ipairs(tasks.stood and tasks or {}) do
      call('BITFIELD', P, 'SET', 'u40', '#' .. t.slot, int(tasks.stood[i + 1]))
    end
  end
  for i = 1, #tasks do flags[#flags + 1] = well and told[i] or '!' end
end
if #others == 0 then return table.concat(flags) end
return {table.concat(flags), unpack(others)}
