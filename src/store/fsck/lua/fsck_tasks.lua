-- Looks at a queue of tasks for what should not be there, and mends it if told to. now.lua and tasks.lua stand
-- before it.
--
-- KEYS z, zl, zt, zm, zu, zd, zw, zf   ARGV[1] the look: one of the names of KEYS, or 'sum'   ARGV[2] '1' = mend
-- ARGV[3] where it begins, as the look before said
-- Returns {where the next look begins or '', {what, name, detail, '1' if mended} per finding}; or an error, as fsck_keys.lua
-- O(tasks * log n), a page of about 100 in a call, of 'zt' about BYTES of records at most; 'zt' and 'sum' only where no more
-- than 100 run or wait. Repeated, it finds what is left.
local Z, L, T, M, U, D, F = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[8]
local what, MEND, from, PAGE, found = ARGV[1], ARGV[2] == '1', ARGV[3], 100, {}
local NAMES = {z = Z, zl = L, zt = T, zm = M, zu = U, zd = D}
local away
-- As in fsck.lua.
local function find(kind, name, detail, mender)
  local mended, fault = false, nil
  if MEND and mender then mended, fault = pcall(mender) end
  if fault and not mended then
    local text = type(fault) == 'table' and fault.err or tostring(fault)
    for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
      local from = string.find(text, code, 1, true)
      if from then away = redis.error_reply(string.sub(text, from)) end
    end
  end
  found[#found + 1] = {kind, name, detail, mended and '1' or '0'}
end
-- Where one of them is of another type, nothing can be told of the others.
for i, kind in ipairs({'zset', 'zset', 'hash', 'hash', 'hash', 'zset', 'zset', 'hash'}) do
  local is = call('TYPE', KEYS[i]).ok
  if is ~= 'none' and is ~= kind then return {''} end
end
local function page(verb, count)
  local all = call(verb, NAMES[what], from, 'COUNT', int(count or PAGE))
  return all[2], all[1] == '0' and '' or all[1]
end
local function record_of(id) return call('HGET', T, id) end

-- Places without a record.
local function places()
  local rows, next = page('ZSCAN')
  for i = 1, #rows, 2 do
    local member, id = rows[i], string.sub(rows[i], 1, ID)
    -- It would run twice, or although it was given up.
    local function not_in(other)
      if call('ZSCORE', NAMES[other], id) then
        local less = what == 'zd' and D or NAMES[other]
        find('task_twice', id, what .. ' and ' .. other, function()
          if less == D then call('HINCRBY', F, 'buried', int(0 - call('HSTRLEN', T, id))) end
          call('ZREM', less, id)
        end)
      end
    end
    if call('HEXISTS', T, id) == 0 then
      find('no_task', id, what, function() call('ZREM', NAMES[what], member) end)
    elseif what ~= 'z' then
      not_in('z')
      if what == 'zl' then not_in('zd') end
    end
  end
  return next
end

-- How many records are looked at in a call, which come as a whole: by what is counted of them, and, since that may be
-- wrong, by some of them.
local function portion()
  local books, bytes = call('HMGET', F, 'bytes', 'buried'), 0
  local mean = ((tonumber(books[1] or '0') or 0) + (tonumber(books[2] or '0') or 0)) / max(call('HLEN', T), 1)
  for _, index in ipairs({Z, D}) do
    local some = call('ZRANGE', index, 0, 9)
    for _, id in ipairs(some) do bytes = bytes + call('HSTRLEN', T, id) end
    mean, bytes = max(mean, bytes / max(#some, 1)), 0
  end
  return max(min(floor(BYTES / max(mean, 1)), PAGE), 1)
end
-- Records without a place. One that may have run, and may not run again, is a dead letter.
local function records()
  if call('ZCARD', L) > PAGE then return '' end
  local runs = {}
  for _, member in ipairs(call('ZRANGE', L, 0, -1)) do runs[string.sub(member, 1, ID)] = true end
  local rows, next = page('HSCAN', portion())
  for i = 1, #rows, 2 do
    local id, record = rows[i], rows[i + 1]
    if not (runs[id] or call('ZSCORE', Z, id) or call('ZSCORE', D, id)) then
      local again, unique = string.match(record, '^%d+ (%d) %d+ ([^ \n]*)[^\n]*\n')
      if not again then
        find('odd', id, 'a record that says nothing')
      else
        find('no_task_place', id, '', function()
          if again == '1' then
            call('ZADD', Z, now, id)
          else
            -- As a worker buries it: what was its alone is free, and its bytes do not wait any more.
            if unique ~= '' and call('HGET', U, unique) == id then call('HDEL', U, unique) end
            -- Each at a moment of its own, as a worker does: a page of letters ends at one, the next begins behind it.
            local grave = now + 86400000000
            for _ = 1, 1000 do
              if call('ZCOUNT', D, int(grave), int(grave)) == 0 then break end
              grave = grave + 1
            end
            call('ZADD', D, int(grave), id)
            call('HINCRBY', F, 'dead', 1)
            call('HINCRBY', F, 'bytes', int(0 - #record))
            call('HINCRBY', F, 'buried', #record)
          end
        end)
      end
    end
  end
  return next
end

-- What is kept beside records that are gone.
local function beside()
  local rows, next = page('HSCAN')
  for i = 1, #rows, 2 do
    local id = what == 'zu' and rows[i + 1] or rows[i]
    if call('HEXISTS', T, id) == 0 then
      find('no_task', id, what, function() call('HDEL', NAMES[what], rows[i]) end)
    end
  end
  return next
end

-- The bytes of those that wait or run, and of dead letters.
local function sum_of(field, ...)
  local bytes, number = 0, 0
  for _, index in ipairs({...}) do number = number + call('ZCARD', index) end
  if number > PAGE then return end
  for _, index in ipairs({...}) do
    for _, member in ipairs(call('ZRANGE', index, 0, -1)) do
      bytes = bytes + call('HSTRLEN', T, string.sub(member, 1, ID))
    end
  end
  local kept = tonumber(call('HGET', F, field) or '0')
  if kept == bytes then return end
  find('tally', 'zf', field .. ' ' .. int(kept) .. ', there are ' .. int(bytes), function()
    call('HSET', F, field, int(bytes))
  end)
end
local function sum()
  sum_of('bytes', Z, L)
  sum_of('buried', D)
end

local next = ''
if what == 'sum' then
  sum()
elseif what == 'zt' then
  next = records()
elseif what == 'zm' or what == 'zu' then
  next = beside()
else
  next = places()
end
return away or {next, unpack(found)}
