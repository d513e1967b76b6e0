-- Changes a queue from outside of its workers.
--
-- KEYS z, zl, zt, zm, zu, zd, zw, zf   ARGV[1] verb:
--   'cancel' id | 'redrive' id | 'redrives' most, us of the first, us between two | 'purge' most | 'purge_one' id
--   | 'purge_waiting' most, and where it goes on: the last place in the order of pushing that goes, us from which it looks,
--   us until which | 'pause' | 'resume'
-- Returns 'cancel': where it was found, 'w', 'r', 'd' or '' | 'purge_waiting' {how many; if there may be more: those three}
--   | else how many
-- O(items * log n), at most 100 items, of 'redrives' and 'purge_waiting' no more than BYTES of records, but one in any case:
-- whoever wants all goes on until there are none, or until no place is named. Not sent again when nobody knows whether it
-- ran: a second one would find other tasks, or none.
local Z, L, T, M, U, D, W, F = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local verb = ARGV[1]
local function unique_of(record) return string.match(record, '^%d+ %d %d+ ([^ \n]*)') or '' end
-- A task that waits no more, and is not to be run.
local function forget(id, record)
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
-- A dead letter that is thrown away.
local function discard(id)
  call('ZREM', D, id)
  call('HINCRBY', F, 'buried', int(0 - call('HSTRLEN', T, id)))
  call('HDEL', T, id)
  call('HDEL', M, id)
  return 1
end
if verb == 'cancel' then
  local id = ARGV[2]
  if call('ZREM', Z, id) == 1 then
    forget(id, call('HGET', T, id) or '')
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
if verb == 'purge_waiting' then
  local most, upto, from, til = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
  if not upto then
    -- It begins: with a place of its own in the order of pushing, behind which stands all that comes later. Of that it looks
    -- at what is due before the last of the others at most.
    til = tonumber(call('ZRANGE', Z, '-1', '-1', 'WITHSCORES')[2])
    if not til then return {'0'} end
    upto, from = place_after(tonumber(call('HGET', F, 'seq') or '0')), 0
    -- Also without room, as a pause.
    call('HDEL', F, '')
    call('HSET', F, 'seq', int(upto))
  end
  local rows = call('ZRANGEBYSCORE', Z, int(from), int(til), 'WITHSCORES', 'LIMIT', '0', int(most))
  local gone, seen, bytes = 0, 0, 0
  for i = 1, #rows, 2 do
    bytes = bytes + call('HSTRLEN', T, rows[i])
    -- A page that ends here has thrown something away, or has come on: else the next would be the same.
    if bytes > BYTES and i > 1 and (gone > 0 or tonumber(rows[i - 1]) > from) then break end
    seen = i + 1
    local record = call('HGET', T, rows[i]) or ''
    local pushed = tonumber(string.match(record, '^%d+') or '0')
    -- What is of a time to come was pushed before the clock was put back.
    if pushed <= upto or pushed > now + 1000000 then
      call('ZREM', Z, rows[i])
      forget(rows[i], record)
      gone = gone + 1
    end
  end
  if gone > 0 then nothing_is_left('bytes', Z, L) end
  if seen == #rows and seen < 2 * most then return {int(gone)} end
  local last = tonumber(rows[seen])
  -- Others may be due at the same time; where all of a page are, and stay, it would be the same page again.
  if last == from and gone == 0 then last = last + 1 end
  if last > til then return {int(gone)} end
  return {int(gone), int(upto), int(last), int(til)}
end
local moved = 0
if verb == 'redrive' then
  if call('ZSCORE', D, ARGV[2]) then moved = redrive(ARGV[2], 0) end
elseif verb == 'redrives' then
  local first, spacing, bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), 0
  for i, id in ipairs(call('ZRANGE', D, '0', tonumber(ARGV[2]) - 1)) do
    bytes = bytes + call('HSTRLEN', T, id)
    if i > 1 and bytes > BYTES then break end
    redrive(id, first + (i - 1) * spacing)
    moved = moved + 1
  end
else
  local ids = {ARGV[2]}
  if verb == 'purge' then ids = call('ZRANGE', D, '0', tonumber(ARGV[2]) - 1) end
  for _, id in ipairs(ids) do
    if call('ZSCORE', D, id) then moved = moved + discard(id) end
  end
  if moved > 0 then call('HINCRBY', F, 'trimmed', moved) end
  -- Of one that is none nothing is written.
  if moved > 0 or verb == 'purge' then nothing_is_left('buried', D) end
end
if moved > 0 and (verb == 'redrive' or verb == 'redrives') then
  local _, tell_sooner = tellers(W)
  tell_sooner(guard_of(call('HGET', F, 'guard')))
end
return moved
