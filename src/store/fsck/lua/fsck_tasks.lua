-- Checks a part of a task queue, and repairs its faults if requested.
--
-- Expects server_time.lua and tasks_wakeups.lua.
--
-- Input:
--   KEYS[1]  waiting tasks, `z` (ZSET)
--   KEYS[2]  running tasks, `zl` (ZSET)
--   KEYS[3]  records, `zt` (HASH)
--   KEYS[4]  failed attempts, `zm` (HASH)
--   KEYS[5]  unique keys, `zu` (HASH)
--   KEYS[6]  dead letters, `zd` (ZSET)
--   KEYS[7]  idle workers, `zw` (ZSET)
--   KEYS[8]  counts, `zf` (HASH)
--   ARGV[1]  check: 'z', 'zl', 'zt', 'zm', 'zu', 'zd', or 'totals' for the counts of bytes
--   ARGV[2]  '1' repair, '0' only report
--   ARGV[3]  cursor; '0' for the first page
-- Output: one of
--   {cursor of the next page or '', {kind, name, detail, '1' if repaired} per finding}
--   with repair, the error with which the server refuses every write, such as READONLY or OOM
-- The kind of a finding is a wire name of `FindingKind`.
-- Complexity: O(tasks * log n). A call checks one page of about 100 entries.
-- - A page of records has at most about `MAX_READ_BYTES`.
-- - Records are skipped if more than 100 tasks run.
-- - A count of bytes is skipped if it is of more than 100 tasks.
-- Idempotent: a repeated call finds the rest.
-- Caller gone: each finding is repaired in the call that finds it, so nothing is left half done.
local WAITING, LEASES, RECORDS, FAILURES, UNIQUE_KEYS, DEAD_LETTERS, QUEUE_META =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[8]
local section, REPAIR, cursor, PAGE_SIZE, findings = ARGV[1], ARGV[2] == '1', ARGV[3], 100, {}
local KEYS_BY_KIND = {
  z = WAITING, zl = LEASES, zt = RECORDS, zm = FAILURES, zu = UNIQUE_KEYS, zd = DEAD_LETTERS
}
local server_error

-- Same as in fsck_jobs.lua.
local function report(kind, name, detail, repair)
  local is_repaired, fault = false, nil
  if REPAIR and repair then is_repaired, fault = pcall(repair) end
  if fault and not is_repaired then
    local text = type(fault) == 'table' and fault.err or tostring(fault)
    for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
      local start = string.find(text, code, 1, true)
      if start then server_error = redis.error_reply(string.sub(text, start)) end
    end
  end
  findings[#findings + 1] = {kind, name, detail, is_repaired and '1' or '0'}
end

-- If one key has another type, nothing is known about the others. fsck_check_repair_keys.lua
-- reports it.
for i, kind in ipairs({'zset', 'zset', 'hash', 'hash', 'hash', 'zset', 'zset', 'hash'}) do
  local actual = call('TYPE', KEYS[i]).ok
  if actual ~= 'none' and actual ~= kind then return {''} end
end

-- Returns one page of the checked key, and the cursor of the next page.
local function scan_page(verb, count)
  local reply = call(verb, KEYS_BY_KIND[section], cursor, 'COUNT', integer(count or PAGE_SIZE))
  return reply[2], reply[1] == '0' and '' or reply[1]
end

-- Checks that each task of an index has a record and is in no other index. A task in two stays in
-- the first of running, waiting, dead.
local function check_entries()
  local rows, next_cursor = scan_page('ZSCAN')
  for i = 1, #rows, 2 do
    local member, id = rows[i], string.sub(rows[i], 1, ID_LENGTH)
    -- A task in two indexes would run twice, or run although it was given up.
    local function expect_absent_from(other)
      if call('ZSCORE', KEYS_BY_KIND[other], id) then
        local removed_from = section == 'zd' and DEAD_LETTERS or KEYS_BY_KIND[other]
        report('task_indexed_twice', id, section .. ' and ' .. other, function()
          if removed_from == DEAD_LETTERS then
            call('HINCRBY', QUEUE_META, 'buried', integer(0 - call('HSTRLEN', RECORDS, id)))
          end
          call('ZREM', removed_from, id)
        end)
      end
    end
    if call('HEXISTS', RECORDS, id) == 0 then
      report('entry_without_task', id, section, function()
        call('ZREM', KEYS_BY_KIND[section], member)
      end)
    elseif section ~= 'z' then
      expect_absent_from('z')
      if section == 'zl' then expect_absent_from('zd') end
    end
  end
  return next_cursor
end

-- Returns the number of records to read in one call; HSCAN returns them whole. Their mean size is
-- that of the counts and, since the counts may be wrong, at least that of samples of both indexes.
local function records_per_page()
  local byte_counters, bytes = call('HMGET', QUEUE_META, 'bytes', 'buried'), 0
  local mean_bytes =
    ((tonumber(byte_counters[1] or '0') or 0) + (tonumber(byte_counters[2] or '0') or 0))
    / max(call('HLEN', RECORDS), 1)
  for _, index in ipairs({WAITING, DEAD_LETTERS}) do
    local sample = call('ZRANGE', index, 0, 9)
    for _, id in ipairs(sample) do bytes = bytes + call('HSTRLEN', RECORDS, id) end
    mean_bytes, bytes = max(mean_bytes, bytes / max(#sample, 1)), 0
  end
  return max(min(floor(MAX_READ_BYTES / max(mean_bytes, 1)), PAGE_SIZE), 1)
end

-- Checks that each record is in an index. A task without one may have run: it becomes a dead letter
-- unless it may run again.
local function check_records()
  if call('ZCARD', LEASES) > PAGE_SIZE then return '' end
  local running_ids = {}
  for _, member in ipairs(call('ZRANGE', LEASES, 0, -1)) do
    running_ids[string.sub(member, 1, ID_LENGTH)] = true
  end
  local rows, next_cursor = scan_page('HSCAN', records_per_page())
  for i = 1, #rows, 2 do
    local id, record = rows[i], rows[i + 1]
    if
      not (running_ids[id] or call('ZSCORE', WAITING, id) or call('ZSCORE', DEAD_LETTERS, id))
    then
      local is_repeatable, unique_key =
        string.match(record, '^%d+ (%d) %d+ ([^ \n]*)[^\n]*\n')
      if not is_repeatable then
        report('invalid_value', id, 'the record cannot be parsed')
      else
        report('task_not_indexed', id, '', function()
          if is_repeatable == '1' then
            call('ZADD', WAITING, now_us, id)
          else
            -- As tasks_settle_and_poll.lua does for a dead letter: its unique key becomes free, and
            -- its bytes move from `bytes` to `buried`.
            if unique_key ~= '' and call('HGET', UNIQUE_KEYS, unique_key) == id then
              call('HDEL', UNIQUE_KEYS, unique_key)
            end
            -- Each dead letter has its own score, as in tasks_settle_and_poll.lua: a page of a
            -- listing ends at a score, and the next page begins after it.
            local dead_stamp_us = now_us + 86400000000
            for _ = 1, 1000 do
              if
                call('ZCOUNT', DEAD_LETTERS, integer(dead_stamp_us), integer(dead_stamp_us)) == 0
              then
                break
              end
              dead_stamp_us = dead_stamp_us + 1
            end
            call('ZADD', DEAD_LETTERS, integer(dead_stamp_us), id)
            call('HINCRBY', QUEUE_META, 'dead', 1)
            call('HINCRBY', QUEUE_META, 'bytes', integer(0 - #record))
            call('HINCRBY', QUEUE_META, 'buried', #record)
          end
        end)
      end
    end
  end
  return next_cursor
end

-- Checks that failed attempts and unique keys belong to tasks with a record.
local function check_side_keys()
  local rows, next_cursor = scan_page('HSCAN')
  for i = 1, #rows, 2 do
    local id = section == 'zu' and rows[i + 1] or rows[i]
    if call('HEXISTS', RECORDS, id) == 0 then
      report('entry_without_task', id, section, function()
        call('HDEL', KEYS_BY_KIND[section], rows[i])
      end)
    end
  end
  return next_cursor
end

-- Checks a count of bytes against the records of some indexes, of at most `PAGE_SIZE` tasks
-- together.
local function check_total(field, ...)
  local actual, entry_count = 0, 0
  for _, index in ipairs({...}) do entry_count = entry_count + call('ZCARD', index) end
  if entry_count > PAGE_SIZE then return end
  for _, index in ipairs({...}) do
    for _, member in ipairs(call('ZRANGE', index, 0, -1)) do
      actual = actual + call('HSTRLEN', RECORDS, string.sub(member, 1, ID_LENGTH))
    end
  end
  local recorded = tonumber(call('HGET', QUEUE_META, field) or '0')
  if recorded == actual then return end
  report(
    'wrong_count', 'zf', field .. ' ' .. integer(recorded) .. ', there are ' .. integer(actual),
    function() call('HSET', QUEUE_META, field, integer(actual)) end
  )
end
local function check_totals()
  check_total('bytes', WAITING, LEASES)
  check_total('buried', DEAD_LETTERS)
end

local next_cursor = ''
if section == 'totals' then
  check_totals()
elseif section == 'zt' then
  next_cursor = check_records()
elseif section == 'zm' or section == 'zu' then
  next_cursor = check_side_keys()
else
  next_cursor = check_entries()
end
return server_error or {next_cursor, unpack(findings)}
