-- Changes a queue from outside of its workers.
--
-- Input:
--   KEYS     z, zl, zt, zm, zu, zd, zw, zf of the queue (see the wire format)
--   ARGV[1]  verb, with its arguments in ARGV[2] and following:
--     'cancel'         id
--     'run_now'        id
--     'redrive'        id
--     'redrives'       most tasks, delay of the first, us, added delay of each other one, us
--     'purge'          most dead letters
--     'purge_one'      id of a dead letter
--     'purge_waiting'  most tasks; to continue, the three numbers of the last reply
--     'pause', 'resume'
-- Output:
--   'cancel', 'run_now'
--                    state in which the task was: 'w' waiting, 'r' running, 'd' dead, '' unknown;
--                    only a waiting task is deleted, or moved to the tail of the due ones
--   'purge_waiting'  {number of deleted tasks}; if there may be more, then also: the last position
--                    in the order of pushes that is deleted, and the due times, us, at which the
--                    walk continues and ends
--   the others       number of changed tasks
-- Complexity: O(tasks * log n), at most 100 tasks.
-- 'redrives' and 'purge_waiting' read at most MAX_READ_BYTES of records, but at least one. A caller
-- that wants all tasks repeats the call: until it returns 0, or 'purge_waiting' names no position.
-- Not repeatable: a second copy would find other tasks, or none.
local WAITING, LEASES, RECORDS, FAILURES, UNIQUE_KEYS, DEAD_LETTERS, IDLE_WORKERS, QUEUE_META =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local verb = ARGV[1]
local function unique_key_of(record)
  return string.match(record, '^%d+ %d %d+ ([^ \n]*)') or ''
end
-- Deletes a task that has left the waiting tasks, and releases its unique key.
local function drop_waiting_task(id, record)
  local unique_key = unique_key_of(record)
  if unique_key ~= '' and call('HGET', UNIQUE_KEYS, unique_key) == id then
    call('HDEL', UNIQUE_KEYS, unique_key)
  end
  call('HDEL', RECORDS, id)
  call('HDEL', FAILURES, id)
  -- Not -#record: for a vanished record that is sent as '-0', which Redis rejects as a number.
  call('HINCRBY', QUEUE_META, 'bytes', integer(0 - #record))
  call('HINCRBY', QUEUE_META, 'cancelled', '1')
end
-- Sets a counter of bytes to 0 if all these keys are empty: the counted size of a vanished record
-- is unknown.
local function reset_if_empty(counter, ...)
  if call('EXISTS', ...) == 0 then call('HSET', QUEUE_META, counter, '0') end
end
-- Moves a dead letter to the tail of the queue. Its history stays, its attempts start from 0. It
-- gets its unique key back, unless another task has that by now. Returns the number of moved tasks.
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
  if unique_key ~= '' and not (unique_owner and call('HEXISTS', RECORDS, unique_owner) == 1) then
    call('HSET', UNIQUE_KEYS, unique_key, id)
  end
  local failures = call('HGET', FAILURES, id)
  if failures then
    call('HSET', FAILURES, id, (string.gsub(failures, '^%d+ %d+', '0 0', 1)))
  end
  return 1
end
local function wake_timer_worker()
  local _, notify_sooner = make_notifiers(IDLE_WORKERS)
  notify_sooner(parse_timer_worker(call('HGET', QUEUE_META, 'guard')))
end
local function purge_dead_letter(id)
  call('ZREM', DEAD_LETTERS, id)
  call('HINCRBY', QUEUE_META, 'buried', integer(0 - call('HSTRLEN', RECORDS, id)))
  call('HDEL', RECORDS, id)
  call('HDEL', FAILURES, id)
  return 1
end
if verb == 'cancel' or verb == 'run_now' then
  local id = ARGV[2]
  local due_us = tonumber(call('ZSCORE', WAITING, id) or nil)
  if due_us and verb == 'cancel' then
    call('ZREM', WAITING, id)
    drop_waiting_task(id, call('HGET', RECORDS, id) or '')
  elseif due_us and due_us > now_us then
    local sequence = next_sequence(tonumber(call('HGET', QUEUE_META, 'seq') or '0'))
    call('HSET', QUEUE_META, 'seq', integer(sequence))
    call('ZADD', WAITING, integer(sequence), id)
    wake_timer_worker()
  end
  if due_us then return 'w' end
  if call('ZSCORE', DEAD_LETTERS, id) then return 'd' end
  return call('HEXISTS', RECORDS, id) == 1 and 'r' or ''
end
if verb == 'pause' then
  -- A pause must work at `maxmemory` too, where it may be the remedy: see renew.lua.
  call('HDEL', QUEUE_META, '')
  return call('HSET', QUEUE_META, 'paused', '1')
end
if verb == 'resume' then
  call('HDEL', QUEUE_META, 'paused')
  wake_idle_worker(IDLE_WORKERS)
  return 1
end
if verb == 'purge_waiting' then
  local limit, last_sequence, from_us, until_us =
    tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
  if not last_sequence then
    -- The walk begins. It takes a position in the order of pushes, and spares all later pushes. It
    -- ends at the due time of the last task that waits now.
    until_us = tonumber(call('ZRANGE', WAITING, '-1', '-1', 'WITHSCORES')[2])
    if not until_us then return {'0'} end
    last_sequence, from_us = next_sequence(tonumber(call('HGET', QUEUE_META, 'seq') or '0')), 0
    -- At `maxmemory` too, like a pause.
    call('HDEL', QUEUE_META, '')
    call('HSET', QUEUE_META, 'seq', integer(last_sequence))
  end
  local rows = call('ZRANGEBYSCORE', WAITING, integer(from_us), integer(until_us),
    'WITHSCORES', 'LIMIT', '0', integer(limit))
  local purged_count, visited, read_bytes = 0, 0, 0
  for i = 1, #rows, 2 do
    read_bytes = read_bytes + call('HSTRLEN', RECORDS, rows[i])
    -- The page may end here only after progress: a deleted task, or a later due time. Otherwise the
    -- next page would be the same.
    if read_bytes > MAX_READ_BYTES and i > 1
      and (purged_count > 0 or tonumber(rows[i - 1]) > from_us) then
      break
    end
    visited = i + 1
    local record = call('HGET', RECORDS, rows[i]) or ''
    local pushed_us = tonumber(string.match(record, '^%d+') or '0')
    -- A position of more than 1 s ahead is from before the clock was set back.
    if pushed_us <= last_sequence or pushed_us > now_us + 1000000 then
      call('ZREM', WAITING, rows[i])
      drop_waiting_task(rows[i], record)
      purged_count = purged_count + 1
    end
  end
  if purged_count > 0 then reset_if_empty('bytes', WAITING, LEASES) end
  if visited == #rows and visited < 2 * limit then return {integer(purged_count)} end
  local next_from_us = tonumber(rows[visited])
  -- The next page begins at the due time of the last task, since other tasks may share it. If that
  -- was the start of this page and nothing was deleted, it would be the same page.
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
    if call('ZSCORE', DEAD_LETTERS, id) then
      changed_count = changed_count + purge_dead_letter(id)
    end
  end
  if changed_count > 0 then call('HINCRBY', QUEUE_META, 'trimmed', changed_count) end
  -- 'purge_one' of a task that is not a dead letter writes nothing.
  if changed_count > 0 or verb == 'purge' then reset_if_empty('buried', DEAD_LETTERS) end
end
if changed_count > 0 and (verb == 'redrive' or verb == 'redrives') then wake_timer_worker() end
return changed_count
