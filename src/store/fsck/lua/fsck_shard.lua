-- The indexes of a shard, a page each, and what it has counted. See fsck.lua.

-- A page of a ZSET of names; where the next begins, or ''.
local function page(index, from)
  if not is(index, 'zset') then return {}, '' end
  local all = redis.call('ZSCAN', index, from, 'COUNT', SCAN)
  local names = {}
  for i = 1, #all[2], 2 do names[#names + 1] = all[2][i] end
  return names, all[1] == '0' and '' or all[1]
end

local look = {}

-- Locks that have jobs: their names, for `lines`.
function look.due(from)
  local names, next = page(TAG .. 'due', from)
  return next, names
end

-- Lines, each with its jobs; from the first one's job behind a sequence. Where there are too many, the rest is for
-- another look: '<number of the line> <sequence>'.
function look.lines(after, ...)
  local room = SCAN
  for n, name in ipairs({...}) do
    turn_to(TAG, name)
    if is_line() then
      if redis.call('EXISTS', G) == 1 then
        stays(G)
        if redis.call('EXISTS', L) == 1 then stays(L) end
      end
      local rows = redis.call('ZRANGEBYSCORE', G, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, room)
      local ids = {}
      for i = 1, #rows, 2 do ids[#ids + 1] = rows[i] end
      for _, id in ipairs(ids) do look_at_job(id) end
      room = room - #ids
      if room <= 0 then return n .. ' ' .. rows[#rows] end
      if #ids == redis.call('ZCARD', G) then look_at_bytes(ids) end
      look_at_due()
    end
    after = '-inf'
  end
  return ''
end

-- One that waits outside of any line, for a request that is gone: its visit finds that out. It leaves only for where it
-- can stand.
local function look_at_late(id, job)
  if not job.lock or not tonumber(job.seq or '') then return find('odd', 'j:' .. id, 'no lock or sequence') end
  if is(own('lates'), 'hash') == nil or not is_line() then return end
  find('no_request', id, NAME, function()
    take_late(id, count(job.bytes))
    stand(id, tonumber(job.seq), count(job.bytes))
  end)
end

-- Jobs that wait outside of any line.
function look.late(from)
  local names, next = page(TAG .. 'late', from)
  for _, id in ipairs(names) do
    turn_to(TAG, '')
    local job, odd = nil, true
    if is_job(id) then job, odd = job_of(id) else find('odd', 'late', id) end
    if job then turn_to(TAG, job.lock or '') end
    local function forget() redis.call('ZREM', own('late'), id) end
    if job and job.state == 'queued' then
      look_at_keys(id, job)
      if redis.call('EXISTS', own('b:' .. id)) == 0 then look_at_late(id, job) end
    elseif job then
      find('ended', id, 'late', forget)
    elseif not odd then
      find('no_job', id, 'late', function()
        forget()
        redis.call('PEXPIRE', own('b:' .. id), KEPT)
      end)
    end
  end
  return next
end

function look.exp(from)
  local names, next = page(TAG .. 'exp', from)
  turn_to(TAG, '')
  for _, id in ipairs(names) do
    local job, odd = job_of(id)
    if not odd and not (job and job.waits) then
      find('no_job', id, 'exp', function() redis.call('ZREM', own('exp'), id) end)
    end
  end
  return next
end

-- Whether the books of an index of ended jobs are of their types.
local function are_books(kind)
  local well = true
  for name, want in pairs({bytes = 'hash', by = 'zset', owners = 'zset'}) do
    if is(TAG .. kind .. name, want) == nil then well = false end
  end
  return well
end

-- A job of such an index, in its books.
local function look_at_books(kind, id, job, score)
  local size, stamp, owner = string.match(redis.call('HGET', own(kind .. 'bytes'), id) or '', '^(%d+) ?(%d*) ?(.*)$')
  if size and redis.call('ZSCORE', own(kind .. 'by'), row_of(owner) .. stamp .. ':' .. id) then return end
  find('tally', kind .. 'bytes', id, function()
    local bytes = SIZE + redis.call('STRLEN', own('b:' .. id)) + redis.call('STRLEN', own('r:' .. id))
    redis.call('HINCRBY', F, kind .. '_bytes', int(bytes - unbook(kind, {id})))
    book(kind, id, job.owner or '', string.format('%016.0f', tonumber(score)), bytes)
  end)
end

-- The sums of the books, if they are not too many for one look.
local function look_at_sums(kind)
  if redis.call('EXISTS', own(kind)) == 0 or redis.call('HLEN', own(kind .. 'bytes')) > SCAN then return end
  local sum, owned, owners = 0, 0, {}
  for _, text in ipairs(redis.call('HVALS', own(kind .. 'bytes'))) do
    local size, _, owner = string.match(text, '^(%d+) ?(%d*) ?(.*)$')
    sum = sum + count(size)
    if size and owner ~= '' then
      owned = owned + count(size)
      owners[owner] = (owners[owner] or 0) + count(size)
    end
  end
  local v, all = redis.call('HMGET', F, kind .. '_bytes', kind .. '_owned'), own(kind .. 'owners')
  local right = count(v[1] or nil, -1) == sum and count(v[2] or nil, -1) == owned
  local kept, number = redis.call('ZRANGE', all, 0, SCAN, 'WITHSCORES'), 0
  for _ in pairs(owners) do number = number + 1 end
  right = right and #kept == 2 * number
  for i = 1, #kept, 2 do right = right and owners[kept[i]] == tonumber(kept[i + 1]) end
  if right then return end
  find('tally', kind .. 'owners', 'there are ' .. int(sum), function()
    redis.call('HSET', F, kind .. '_bytes', int(sum), kind .. '_owned', int(owned))
    redis.call('DEL', all)
    for owner, size in pairs(owners) do redis.call('ZADD', all, int(size), owner) end
    if number > 0 then redis.call('PEXPIRE', all, math.max(redis.call('PTTL', own(kind)), 1)) end
  end)
end

-- An index of ended jobs, from behind a mark.
local function ended_jobs(state, from)
  local index = TAG .. state
  if not is(index, 'zset') or is(F, 'hash') == nil then return '' end
  turn_to(TAG, '')
  local books = are_books(state)
  -- What ends in this moment may have gone already, before its entry.
  if from == '0' then from = int(NOW_US + 1000000) end
  local rows = redis.call('ZRANGEBYSCORE', index, '(' .. from, '+inf', 'WITHSCORES', 'LIMIT', 0, SCAN)
  for i = 1, #rows, 2 do
    local id = rows[i]
    local job, odd = job_of(id)
    -- As if by hand: nothing was trimmed.
    local function forget() unfile(state, id) end
    if not job and not odd then find('no_job', id, state, forget) end
    if job and (job.state ~= state or job.gone) then
      find('ended', id, 'is ' .. (job.gone and 'a tombstone' or job.state or '?') .. ', not ' .. state, forget)
    elseif job and books then
      look_at_books(state, id, job, rows[i + 1])
    end
  end
  if #rows < 2 * SCAN and books then look_at_sums(state) end
  return #rows == 2 * SCAN and int(tonumber(rows[#rows])) or ''
end
function look.done(from) return ended_jobs('done', from) end
function look.dead(from) return ended_jobs('dead', from) end

-- Sums over all that is pending, if that is not too much for one look. Names are lines that `due` does not know:
-- 'all' of them, or 'some' where nobody can ask for names. Then what is missing may be theirs, and what is too much is
-- too much all the same. Where a key is of another type, that is told, and nothing of sums.
function look.sums(names, ...)
  for name, want in pairs({due = 'zset', late = 'zset', lates = 'hash', f = 'hash'}) do
    if is(TAG .. name, want) == nil then return '' end
  end
  local lines = redis.call('ZRANGE', TAG .. 'due', 0, SCAN)
  for _, name in ipairs({...}) do
    if not redis.call('ZSCORE', TAG .. 'due', name) then lines[#lines + 1] = name end
  end
  local late = redis.call('ZRANGE', TAG .. 'late', 0, SCAN)
  if #lines + #late > SCAN then return 'many' end
  local jobs, bytes, lates = #late, 0, {}
  for _, name in ipairs(lines) do
    if is(TAG .. 'g:' .. name, 'zset') == nil or is(TAG .. 'l:' .. name, 'hash') == nil then return '' end
    jobs = jobs + redis.call('ZCARD', TAG .. 'g:' .. name)
    bytes = bytes + count(redis.call('HGET', TAG .. 'l:' .. name, 'bytes') or nil)
  end
  turn_to(TAG, '')
  for _, id in ipairs(late) do
    if is(own('j:' .. id), 'hash') == nil then return '' end
    local v = redis.call('HMGET', own('j:' .. id), 'lock', 'bytes')
    local size, name = count(v[2] or nil), v[1] or ''
    bytes = bytes + size
    lates['n' .. name] = (lates['n' .. name] or 0) + 1
    lates['b' .. name] = (lates['b' .. name] or 0) + size
  end
  local function compare(key, field, kept, sum)
    if kept == sum then return end
    find('tally', name_of(key), field .. ' ' .. int(kept) .. ', there are ' .. int(sum), function()
      if sum == 0 and key ~= F then redis.call('HDEL', key, field) else redis.call('HSET', key, field, int(sum)) end
    end)
  end
  local counted = redis.call('HMGET', F, 'jobs', 'bytes')
  local missing = false
  for i, field in ipairs({'jobs', 'bytes'}) do
    local kept, sum = count(counted[i] or nil, -1), ({jobs, bytes})[i]
    if names == 'some' and sum < kept then missing = true else compare(F, field, kept, sum) end
  end
  local kept = redis.call('HGETALL', own('lates'))
  for i = 1, #kept, 2 do
    compare(own('lates'), kept[i], count(kept[i + 1], -1), lates[kept[i]] or 0)
    lates[kept[i]] = nil
  end
  for field, sum in pairs(lates) do compare(own('lates'), field, 0, sum) end
  return missing and 'some' or ''
end
