-- Stores tasks; those of one queue that come one after the other are a group.
--
-- KEYS a group: z, zt, zu, zw, zf, zp of the queue and this process; then of each task with a window its zu:<unique>
-- ARGV[1] channel prefix   then a group: number of tasks, most that may wait, most bytes;
-- then a task: id, number, delay us, kind ('' | 'p' unique while pending, unique | 'w' unique in a window, ms), the
-- record but for its time
-- Returns a letter for each task: '1' stored, 'f' full, 'k' its unique key is another's, '?' nobody knows
-- whether it ran before, '!' the store's data are not ours; then the ids for 'k', in order.
-- O(tasks * log n), at most 100. Idempotent: zp has the numbers of this process's last pushes, each in its slot, so one
-- that is sent again is not stored again, even if the task has ended meanwhile.
local SLOTS, channel = 4096, ARGV[1]
local flags, others, k, a = {}, {}, 0, 2
-- Which of them have been stored before: what stood in the slots of their numbers.
local function slots(P, tasks)
  local words = {}
  for i, t in ipairs(tasks) do
    local at = (i - 1) * 4
    words[at + 1], words[at + 2], words[at + 3], words[at + 4] = 'SET', 'u40', '#' .. (t.number % SLOTS), t.number
  end
  local before = call('BITFIELD', P, unpack(words))
  call('PEXPIRE', P, 600000)
  return before
end
local function read(count)
  local tasks, rest = {}, a
  for i = 1, count do
    local t = {id = ARGV[rest], number = tonumber(ARGV[rest + 1]), delay = tonumber(ARGV[rest + 2]), kind = ARGV[rest + 3]}
    rest = rest + 4
    if t.kind ~= '' then t.unique, rest = ARGV[rest], rest + 1 end
    if t.kind == 'w' then
      k = k + 1
      t.window = KEYS[k]
    end
    t.record, rest = ARGV[rest], rest + 1
    tasks[i] = t
  end
  a = rest
  return tasks
end
-- The task that has what is this one's alone, if it is another.
local function other(t, T, U, stored)
  if t.kind == 'p' then
    local id = call('HGET', U, t.unique)
    if id and id ~= t.id and (stored[id] or call('HEXISTS', T, id) == 1) then return id end
    call('HSET', U, t.unique, t.id)
  elseif t.kind == 'w' then
    local id = call('GET', t.window)
    if id and id ~= t.id then return id end
    call('SET', t.window, t.id, 'PX', t.unique)
  end
end
local function group(base, tasks, most, room)
  local Z, T, U, W, F, P = KEYS[base + 1], KEYS[base + 2], KEYS[base + 3], KEYS[base + 4], KEYS[base + 5], KEYS[base + 6]
  local f = call('HMGET', F, 'seq', 'bytes', 'pushed', 'woke', 'guard')
  local seq, bytes, pushed, woke = tonumber(f[1] or '0'), tonumber(f[2] or '0'), tonumber(f[3] or '0'), tonumber(f[4] or '0')
  local before, waiting, mine = slots(P, tasks), call('ZCARD', Z), {}
  local records, places, told, n = {}, {}, {}, 0
  for i, t in ipairs(tasks) do
    local letter, id = '1', nil
    local length = #t.record + 16
    if before[i] == t.number then
      letter = '1'
    elseif before[i] > t.number then
      letter = call('HEXISTS', T, t.id) == 1 and '1' or '?'
    elseif waiting + n >= most or bytes + length > room then
      letter = 'f'
    else
      id = other(t, T, U, mine)
      if id then
        letter = 'k'
        others[#others + 1] = id
      else
        seq, bytes = place_after(seq), bytes + length
        mine[t.id] = true
        n = n + 1
        records[2 * n - 1], records[2 * n] = t.id, string.format('%016.0f', seq) .. t.record
        places[2 * n - 1], places[2 * n] = seq + t.delay, t.id
      end
    end
    -- What was not stored may be, when it comes again.
    if letter == 'f' or letter == 'k' then call('BITFIELD', P, 'SET', 'u40', '#' .. (t.number % SLOTS), 0) end
    told[i] = letter
  end
  if n > 0 then
    call('HSET', T, unpack(records))
    call('ZADD', Z, unpack(places))
    local head = call('ZRANGE', Z, 0, 0, 'WITHSCORES')
    local due = tonumber(head[2])
    local first, late = mine[head[1]], due < now - 50000 and woke < now - 50000
    if first or late then woke = now end
    call('HSET', F, 'seq', seq, 'bytes', bytes, 'pushed', pushed + n, 'woke', woke)
    if first and due > now then
      tell_sooner(W, guard_of(f[5]), channel)
    elseif first or late then
      wake(W, channel)
    end
  end
  return told
end
while ARGV[a] do
  local count, most, room = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local base = k
  k, a = k + 6, a + 3
  local tasks = read(count)
  local well, told = pcall(group, base, tasks, most, room)
  for i = 1, count do flags[#flags + 1] = well and told[i] or '!' end
end
return {table.concat(flags), unpack(others)}
