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
local WAITING, LEASES, RECORDS, FAILURES, UNIQUE_KEYS, DEAD_LETTERS, IDLE_WORKERS, QUEUE_META = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local verb = ARGV[1]
local function unique_key_of(record) return string.match(record, '^%d+ %d %d+ ([^ \n]*)') or '' end
-- A task that waits no more, and is not to be run.
local function drop_waiting_task(id, record)
  local unique_key = unique_key_of(record)
  if unique_key ~= '' and call('HGET', UNIQUE_KEYS, unique_key) == id then call('HDEL', UNIQUE_KEYS, unique_key) end
  call('HDEL', RECORDS, id)
  call('HDEL', FAILURES, id)
  -- Not -#record: of one that vanished that is '-0' on the wire, which the server does not take for a number.
  call('HINCRBY', QUEUE_META, 'bytes', integer(0 - #record))
  call('HINCRBY', QUEUE_META, 'cancelled', '1')
end
-- What a record that vanished was counted as is not known: where nothing is left, nothing is counted.
local function reset_if_empty(counter, ...)
  if call('EXISTS', ...) == 0 then call('HSET', QUEUE_META, counter, '0') end
end
-- From the dead letters to the tail; its history stays, its attempts begin anew. It waits under its unique key again,
-- unless that is another's by now.
local function redrive_task(id, delay_us)
  local record = call('HGET', RECORDS, id)
  call('ZREM', DEAD_LETTERS, id)
  if not record then
    call('HDEL', FAILURES, id)
    return 0
  end
  local sequence = next_sequence(tonumber(call('HGET', QUEUE_META, 'seq') or '0'))
  call('HSET', QUEUE_META, 'seq', sequence)
  call('HINCRBY', QUEUE_META, 'bytes', #record)
  call('HINCRBY', QUEUE_META, 'buried', integer(0 - #record))
  call('ZADD', WAITING, sequence + delay_us, id)
  local unique_key = unique_key_of(record)
  local unique_owner = unique_key ~= '' and call('HGET', UNIQUE_KEYS, unique_key)
  if unique_key ~= '' and not (unique_owner and call('HEXISTS', RECORDS, unique_owner) == 1) then call('HSET', UNIQUE_KEYS, unique_key, id) end
  local failures = call('HGET', FAILURES, id)
  if failures then call('HSET', FAILURES, id, (string.gsub(failures, '^%d+ %d+', '0 0', 1))) end
  return 1
end
-- A dead letter that is thrown away.
local function purge_dead_letter(id)
  call('ZREM', DEAD_LETTERS, id)
  call('HINCRBY', QUEUE_META, 'buried', integer(0 - call('HSTRLEN', RECORDS, id)))
  call('HDEL', RECORDS, id)
  call('HDEL', FAILURES, id)
  return 1
end
if verb == 'cancel' then
  local id = ARGV[2]
  if call('ZREM', WAITING, id) == 1 then
    drop_waiting_task(id, call('HGET', RECORDS, id) or '')
    return 'w'
  end
  if call('ZSCORE', DEAD_LETTERS, id) then return 'd' end
  return call('HEXISTS', RECORDS, id) == 1 and 'r' or ''
end
if verb == 'pause' then
  -- Also without room, where it may be what is wanted: see renew.lua.
  call('HDEL', QUEUE_META, '')
  return call('HSET', QUEUE_META, 'paused', '1')
end
if verb == 'resume' then
  call('HDEL', QUEUE_META, 'paused')
  wake_idle_worker(IDLE_WORKERS)
  return 1
end
if verb == 'purge_waiting' then
  local limit, last_sequence, from_us, until_us = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
  if not last_sequence then
    -- It begins: with a place of its own in the order of pushing, behind which stands all that comes later. Of that it looks
    -- at what is due before the last of the others at most.
    until_us = tonumber(call('ZRANGE', WAITING, '-1', '-1', 'WITHSCORES')[2])
    if not until_us then return {'0'} end
    last_sequence, from_us = next_sequence(tonumber(call('HGET', QUEUE_META, 'seq') or '0')), 0
    -- Also without room, as a pause.
    call('HDEL', QUEUE_META, '')
    call('HSET', QUEUE_META, 'seq', integer(last_sequence))
  end
  local rows = call('ZRANGEBYSCORE', WAITING, integer(from_us), integer(until_us), 'WITHSCORES', 'LIMIT', '0', integer(limit))
  local purged_count, visited, read_bytes = 0, 0, 0
  for i = 1, #rows, 2 do
    read_bytes = read_bytes + call('HSTRLEN', RECORDS, rows[i])
    -- A page that ends here has thrown something away, or has come on: else the next would be the same.
    if read_bytes > MAX_READ_BYTES and i > 1 and (purged_count > 0 or tonumber(rows[i - 1]) > from_us) then break end
    visited = i + 1
    local record = call('HGET', RECORDS, rows[i]) or ''
    local pushed_us = tonumber(string.match(record, '^%d+') or '0')
    -- What is of a time to come was pushed before the clock was put back.
    if pushed_us <= last_sequence or pushed_us > now_us + 1000000 then
      call('ZREM', WAITING, rows[i])
      drop_waiting_task(rows[i], record)
      purged_count = purged_count + 1
    end
  end
  if purged_count > 0 then reset_if_empty('bytes', WAITING, LEASES) end
  if visited == #rows and visited < 2 * limit then return {integer(purged_count)} end
  local next_from_us = tonumber(rows[visited])
  -- Others may be due at the same time; where all of a page are, and stay, it would be the same page again.
  if next_from_us == from_us and purged_count == 0 then next_from_us = next_from_us + 1 end
  if next_from_us > until_us then return {integer(purged_count)} end
  return {integer(purged_count), integer(last_sequence), integer(next_from_us), integer(until_us)}
end
local changed_count = 0
if verb == 'redrive' then
  if call('ZSCORE', DEAD_LETTERS, ARGV[2]) then changed_count = redrive_task(ARGV[2], 0) end
elseif verb == 'redrives' then
  local first_delay_us, spacing_us, read_bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), 0
  for i, id in ipairs(call('ZRANGE', DEAD_LETTERS, '0', tonumber(ARGV[2]) - 1)) do
    read_bytes = read_bytes + call('HSTRLEN', RECORDS, id)
    if i > 1 and read_bytes > MAX_READ_BYTES then break end
    redrive_task(id, first_delay_us + (i - 1) * spacing_us)
    changed_count = changed_count + 1
  end
else
  local ids = {ARGV[2]}
  if verb == 'purge' then ids = call('ZRANGE', DEAD_LETTERS, '0', tonumber(ARGV[2]) - 1) end
  for _, id in ipairs(ids) do
    if call('ZSCORE', DEAD_LETTERS, id) then changed_count = changed_count + purge_dead_letter(id) end
  end
  if changed_count > 0 then call('HINCRBY', QUEUE_META, 'trimmed', changed_count) end
  -- Of one that is none nothing is written.
  if changed_count > 0 or verb == 'purge' then reset_if_empty('buried', DEAD_LETTERS) end
end
if changed_count > 0 and (verb == 'redrive' or verb == 'redrives') then
  local _, notify_sooner = make_notifiers(IDLE_WORKERS)
  notify_sooner(parse_guard(call('HGET', QUEUE_META, 'guard')))
end
return changed_count
