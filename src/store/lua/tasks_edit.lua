-- Changes a queue from outside of its workers.
--
-- KEYS z, zl, zt, zm, zu, zd, zw, zf   ARGV[1] verb:
--   'cancel' id | 'redrive' id | 'redrives' most, us of the first, us between two | 'purge' 'z' or 'd', most
--   | 'pause' | 'resume'
-- Returns 'cancel': where it was found, 'w', 'r', 'd' or '' | else how many
-- O(items * log n), at most 100 items. Not sent again when nobody knows whether it ran: a second one would find other
-- tasks, or none.
local Z, L, T, M, U, D, W, F = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local verb = ARGV[1]
local function unique_of(record) return string.match(record, '^%d+ %d %d+ ([^\n]*)\n') or '' end
-- A task that waits no more, and is not to be run.
local function forget(id)
  local record = call('HGET', T, id) or ''
  local unique = unique_of(record)
  if unique ~= '' and call('HGET', U, unique) == id then call('HDEL', U, unique) end
  call('HDEL', T, id)
  call('HDEL', M, id)
  -- Not -#record: of one that vanished that is '-0' on the wire, which the server does not take for a number.
  call('HINCRBY', F, 'bytes', int(0 - #record))
  call('HINCRBY', F, 'cancelled', '1')
end
-- What a record that vanished was counted as is not known: where nothing is left, nothing is counted.
local function nothing_is_left(counter, ...)
  if call('EXISTS', ...) == 0 then call('HSET', F, counter, '0') end
end
-- From the dead letters to the tail; its history stays, its attempts begin anew. It waits under its unique key again,
-- unless that is another's by now.
local function redrive(id, delay)
  local record = call('HGET', T, id)
  call('ZREM', D, id)
  if not record then
    call('HDEL', M, id)
    return 0
  end
  local seq = place_after(tonumber(call('HGET', F, 'seq') or '0'))
  call('HSET', F, 'seq', seq)
  call('HINCRBY', F, 'bytes', #record)
  call('HINCRBY', F, 'buried', int(0 - #record))
  call('ZADD', Z, seq + delay, id)
  local unique = unique_of(record)
  local other = unique ~= '' and call('HGET', U, unique)
  if unique ~= '' and not (other and call('HEXISTS', T, other) == 1) then call('HSET', U, unique, id) end
  local meta = call('HGET', M, id)
  if meta then call('HSET', M, id, (string.gsub(meta, '^%d+ %d+', '0 0', 1))) end
  return 1
end
if verb == 'cancel' then
  local id = ARGV[2]
  if call('ZREM', Z, id) == 1 then
    forget(id)
    return 'w'
  end
  if call('ZSCORE', D, id) then return 'd' end
  return call('HEXISTS', T, id) == 1 and 'r' or ''
end
if verb == 'pause' then
  -- Also without room, where it may be what is wanted: see renew.lua.
  call('HDEL', F, '')
  return call('HSET', F, 'paused', '1')
end
if verb == 'resume' then
  call('HDEL', F, 'paused')
  wake_one(W)
  return 1
end
local moved = 0
if verb == 'redrive' then
  if call('ZSCORE', D, ARGV[2]) then moved = redrive(ARGV[2], 0) end
elseif verb == 'redrives' then
  local first, spacing = tonumber(ARGV[3]), tonumber(ARGV[4])
  for i, id in ipairs(call('ZRANGE', D, '0', tonumber(ARGV[2]) - 1)) do
    redrive(id, first + (i - 1) * spacing)
    moved = moved + 1
  end
elseif ARGV[2] == 'z' then
  for _, id in ipairs(call('ZRANGE', Z, '0', tonumber(ARGV[3]) - 1)) do
    call('ZREM', Z, id)
    forget(id)
    moved = moved + 1
  end
  nothing_is_left('bytes', Z, L)
else
  for _, id in ipairs(call('ZRANGE', D, '0', tonumber(ARGV[3]) - 1)) do
    call('ZREM', D, id)
    call('HINCRBY', F, 'buried', int(0 - call('HSTRLEN', T, id)))
    call('HDEL', T, id)
    call('HDEL', M, id)
    moved = moved + 1
  end
  if moved > 0 then call('HINCRBY', F, 'trimmed', moved) end
  nothing_is_left('buried', D)
end
if moved > 0 and (verb == 'redrive' or verb == 'redrives') then
  local _, tell_sooner = tellers(W)
  tell_sooner(guard_of(call('HGET', F, 'guard')))
end
return moved
