-- Polls a queue for a worker: settles runs, takes back runs with an ended lease, starts due tasks.
--
-- Input:
--   KEYS[1]  waiting tasks of the queue (ZSET `z`); its other keys are derived from this one
--   KEYS[2]  last poll of the worker (STRING `zr`)
--   ARGV[1]  one text, separated by blanks:
--     '<node>:<worker>.<poll number>'
--     runs wanted, plus 1
--     '1' if the worker may be listed as idle (`zw`), or '0'
--     '1' if a settlement is not a success, or has a unique key; or '0'
--     lease, us
--     TTL of `zr`, ms
--     time that the worker may be idle, us; 0 = it must not be woken
--     most concurrent runs, 0 = no limit
--     time between two starts, us, 0 = no limit
--     burst: starts that may come at once
--     retention of dead letters, us
--     most dead letters
--     most bytes of dead letters
--     crashes that make a task a dead letter
--   then, per settlement:
--     its terms, one of:
--       'd<bytes>'                              done
--       'r<bytes> <delay us> <fault> <reason>'  retry
--       'k<bytes> <delay us> <fault> <reason>'  dead
--       'b<bytes> <delay us>  '                 returned to the queue, not charged
--       'c<bytes>'                              cancelled
--     its run, '<id><worker>.<poll number>'
--     the task's unique key, if it has one; then the letter is a capital
-- Output, an array:
--   text with one character per settlement: '1' stored, '0' the run was lost before
--   us until the worker's next poll; '-1' = no time is set
--   '0' the worker is not listed as idle, '1' it is, '2' it is and no task waits, runs or has to be
--     deleted; if runs were taken back, followed by ',<runs>,<runs>': those that did not make their
--     tasks dead letters, and those that did
--   then, per started run: id, attempt, record
-- The records have at most MAX_READ_BYTES together, but at least one is returned. If that limit
-- leaves due tasks behind, or if more leases have ended than one call handles, the worker must poll
-- again at once.
-- Complexity: O((settlements + starts + lapsed runs) * log n), at most 100 of each. The lapsed runs
-- of one call have at most MAX_READ_BYTES of records, unless a single one has more. The caller
-- keeps the same limit for tasks that it returns without a delay.
-- Idempotent: `zr` has the number of the worker's last poll and its result.
-- A run is its worker's as long as `zl` contains its member. A late settlement does not find it.
-- Caller gone: its runs are taken back when their leases end.
-- A task with a vanished record is removed as soon as that is detected. Only its unique key stays,
-- since the record named it; a later push takes the key over.
-- Functions for rare work are created only if this call has such work: a settlement other than a
-- plain success, a lapsed lease, limits of runs, or the sweep, once a second.
local match, sub = string.match, string.sub
local WAITING, LAST_POLL = KEYS[1], KEYS[2]
local split_at = string.find(WAITING, '}:z:', 1, true)
local shard_prefix, queue_name = sub(WAITING, 1, split_at + 1), sub(WAITING, split_at + 3)
local LEASES, RECORDS, FAILURES, QUEUE_META, IDLE_WORKERS =
  shard_prefix .. 'zl' .. queue_name, shard_prefix .. 'zt' .. queue_name,
  shard_prefix .. 'zm' .. queue_name, shard_prefix .. 'zf' .. queue_name,
  shard_prefix .. 'zw' .. queue_name
local worker, run_suffix, row_limit, idle_state, has_special_settlements, terms =
  match(ARGV[1], '^([^:]*:%x*)(%.%d+) (%d+) (%d) (%d) (.*)$')
local lease_us, poll_ttl_ms, idle_us
lease_us, poll_ttl_ms, idle_us, terms = match(terms, '^(%d+) (%d+) (%d+) (.*)$')
local poll_number, wanted = sub(run_suffix, 2), row_limit - 1
run_suffix = match(worker, '%x*$') .. run_suffix
local has_limits = sub(terms, 1, 4) ~= '0 0 '
local RECORDS_PER_READ = 16

local last_poll = call('GET', LAST_POLL)
if last_poll then
  local last_number, last_outcomes, last_lapsed, last_ids =
    match(last_poll, '^(%d+) (%d*)([%d,]*) (.*)$')
  -- A poll that arrives after its successor: no caller waits for its reply.
  if #last_number > #poll_number
    or #last_number == #poll_number and last_number > poll_number then
    return {'', '-1', '0'}
  end
  if last_number == poll_number then
    local is_idle = call('ZSCORE', IDLE_WORKERS, worker)
    local results = {last_outcomes, '0', (is_idle and '1' or '0') .. last_lapsed}
    for i = 1, #last_ids, ID_LENGTH do
      local id = sub(last_ids, i, i + ID_LENGTH - 1)
      local record = call('ZSCORE', LEASES, id .. run_suffix) and call('HGET', RECORDS, id)
      if record then
        local n = #results
        results[n + 1], results[n + 2], results[n + 3] =
          id, match(call('HGET', FAILURES, id) or '0', '^%d+') + 1, record
      end
    end
    return results
  end
end

local meta = call('HMGET', QUEUE_META, 'paused', 'guard', 'swept')
local is_paused, guard, guarded_us = meta[1], nil, 0
if meta[2] then guard, guarded_us = parse_timer_worker(meta[2]) end
-- soonest_retry_us: earliest due time of the tasks that this call puts back into the queue.
-- has_failure_notes: true if any task has failed; nil = not asked yet. Mostly none has, and `zm`
-- does not exist.
-- lapsed_counts: runs that were taken back, as in the reply.
local soonest_retry_us, has_failure_notes
local lapsed_counts = ''
local swept_us = tonumber(meta[3]) or 0
local is_sweep_due = now_us - swept_us >= 1000000 or now_us < swept_us
-- An idle queue mostly has no task at all, and then its keys need not be read.
local is_empty = is_sweep_due and not ARGV[2]
  and call('EXISTS', WAITING, LEASES, shard_prefix .. 'zd' .. queue_name) == 0
local first_lease_end_us = not is_empty and call('ZRANGE', LEASES, '0', '0', 'WITHSCORES')[2]
local has_lapsed_leases = first_lease_end_us and tonumber(first_lease_end_us) <= now_us
local slow_path = {}
if is_sweep_due or has_lapsed_leases or has_limits or has_special_settlements == '1' then
  local max_running, start_interval_us, burst, dead_retention_us, max_dead, max_dead_bytes,
    max_crashes = match(terms, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local UNIQUE_KEYS, DEAD_LETTERS, PAGE_SIZE =
    shard_prefix .. 'zu' .. queue_name, shard_prefix .. 'zd' .. queue_name, 100
  local FAULT_COUNTERS = {f = 'failed', u = 'failed', p = 'panicked', c = 'crashed'}
  local function read_counter(field)
    return tonumber(call('HGET', QUEUE_META, field) or '0') or 0
  end
  local function add_to_counter(field, n) call('HINCRBY', QUEUE_META, field, integer(n)) end
  local function requeue_task(id, due_us)
    call('ZADD', WAITING, integer(due_us), id)
    if not soonest_retry_us or due_us < soonest_retry_us then soonest_retry_us = due_us end
  end
  -- Returns the due time of a task at the tail of the queue, after a delay.
  local function tail_due_us(delay_us)
    local sequence = next_sequence(read_counter('seq'))
    call('HSET', QUEUE_META, 'seq', integer(sequence))
    return sequence + delay_us
  end
  function slow_path.release_unique_key(unique_key, id)
    if unique_key and call('HGET', UNIQUE_KEYS, unique_key) == id then
      call('HDEL', UNIQUE_KEYS, unique_key)
    end
  end
  -- Adds a failure to the history of a task. Returns its attempts and crashes so far.
  local function record_failure(id, fault, reason)
    local attempts, crash_count, history =
      match(call('HGET', FAILURES, id) or '', '^(%d+) (%d+)\n(.*)$')
    attempts, crash_count =
      tonumber(attempts or '0') + 1, tonumber(crash_count or '0') + (fault == 'c' and 1 or 0)
    history = (history or '') .. integer(now_us) .. ' ' .. fault .. ' ' .. reason .. '\n'
    local _, lines = string.gsub(history, '\n', '')
    for _ = MAX_HISTORY + 1, lines do history = string.gsub(history, '^[^\n]*\n', '', 1) end
    call('HSET', FAILURES, id, attempts .. ' ' .. crash_count .. '\n' .. history)
    has_failure_notes = true
    add_to_counter(FAULT_COUNTERS[fault] or 'failed', 1)
    return attempts, crash_count
  end
  local function purge_dead_letters(ids)
    if #ids == 0 then return end
    local freed_bytes = 0
    for _, id in ipairs(ids) do freed_bytes = freed_bytes + call('HSTRLEN', RECORDS, id) end
    add_to_counter('buried', -freed_bytes)
    call('ZREM', DEAD_LETTERS, unpack(ids))
    call('HDEL', RECORDS, unpack(ids))
    call('HDEL', FAILURES, unpack(ids))
    add_to_counter('trimmed', #ids)
  end
  -- Deletes the oldest dead letters while there are too many, or too many bytes of them; at most
  -- PAGE_SIZE in one call, the others in the next. `newest` stays if there is another one, even if
  -- its retention ends first: it could not be inspected yet.
  local purge_budget = PAGE_SIZE
  local function purge_excess(newest)
    while purge_budget > 0
      and (call('ZCARD', DEAD_LETTERS) > tonumber(max_dead)
        or read_counter('buried') > tonumber(max_dead_bytes)) do
      local oldest = call('ZRANGE', DEAD_LETTERS, '0', '1')
      -- The counted size of a vanished record is unknown: without dead letters the count is 0.
      if not oldest[1] then return call('HSET', QUEUE_META, 'buried', '0') end
      purge_budget = purge_budget - 1
      purge_dead_letters({oldest[1] == newest and oldest[2] or oldest[1]})
    end
  end
  -- Adds a task to the dead letters, with a score that no other letter has. A page ends behind a
  -- score, so a second letter with the same score could be on no page. The first score is mostly
  -- free; the letters of one call follow each other.
  local dead_stamp_us = now_us + dead_retention_us
  local function add_dead_letter(id, record_bytes, unique_key)
    slow_path.release_unique_key(unique_key, id)
    for _ = 1, 1000 do
      if call('ZCOUNT', DEAD_LETTERS, integer(dead_stamp_us), integer(dead_stamp_us)) == 0 then
        break
      end
      dead_stamp_us = dead_stamp_us + 1
    end
    call('ZADD', DEAD_LETTERS, integer(dead_stamp_us), id)
    dead_stamp_us = dead_stamp_us + 1
    add_to_counter('dead', 1)
    add_to_counter('bytes', -record_bytes)
    add_to_counter('buried', call('HSTRLEN', RECORDS, id))
    purge_excess(id)
  end
  -- Applies a settlement other than a success.
  function slow_path.settle_unsuccessful(settlement)
    if settlement.kind == 'c' then
      slow_path.release_unique_key(settlement.unique_key, settlement.id)
      call('HDEL', RECORDS, settlement.id)
      call('HDEL', FAILURES, settlement.id)
      add_to_counter('bytes', 0 - settlement.bytes)
      return add_to_counter('cancelled', 1)
    end
    local delay_us, fault, reason = match(settlement.details, '^ (%d+) (%a?) (.*)$')
    delay_us = tonumber(delay_us)
    if settlement.kind == 'b' then
      local due_us = now_us + delay_us
      -- Without a delay the task is first again: it has been waiting since it was pushed.
      if delay_us == 0 then
        due_us = min(
          tonumber(match(call('HGET', RECORDS, settlement.id) or '', '^%d+') or now_us), now_us)
      end
      requeue_task(settlement.id, due_us)
    else
      record_failure(settlement.id, fault, reason)
      if settlement.kind == 'r' then
        requeue_task(settlement.id, tail_due_us(delay_us))
      else
        add_dead_letter(settlement.id, settlement.bytes, settlement.unique_key)
      end
    end
  end
  -- Takes back runs with an ended lease: their worker has died, or has stalled for longer than the
  -- lease. Returns true if there may be more of them.
  function slow_path.reap_lapsed()
    local lapsed_runs =
      call('ZRANGEBYSCORE', LEASES, '-inf', integer(now_us), 'LIMIT', '0', PAGE_SIZE)
    local members, read_bytes, dead_count = {}, 0, 0
    for i, member in ipairs(lapsed_runs) do
      read_bytes = read_bytes + call('HSTRLEN', RECORDS, sub(member, 1, ID_LENGTH))
      if i > 1 and read_bytes > MAX_READ_BYTES then break end
      members[i] = member
    end
    if members[1] then call('ZREM', LEASES, unpack(members)) end
    for i, member in ipairs(members) do
      local id = sub(member, 1, ID_LENGTH)
      local record = call('HGET', RECORDS, id)
      local is_repeatable, max_attempts, unique_key =
        match(record or '', '^%d+ (%d) (%d+) ([^ \n]*)')
      if not record then
        call('HDEL', FAILURES, id)
        add_to_counter('lost', 1)
      else
        local attempts, crash_count = record_failure(id, 'c', 'crashed, may have run')
        if is_repeatable == '0' or attempts >= tonumber(max_attempts or '0')
          or crash_count >= tonumber(max_crashes) then
          add_dead_letter(id, #record, unique_key)
          dead_count = dead_count + 1
        else
          -- All are due, and keep their order.
          requeue_task(id, now_us - #members + i)
        end
      end
    end
    if members[1] then lapsed_counts = ',' .. #members - dead_count .. ',' .. dead_count end
    return #members < #lapsed_runs or #lapsed_runs == PAGE_SIZE
  end
  -- Returns the number of tasks that may be started now, and the time at which there may be more,
  -- if that is known.
  function slow_path.start_budget()
    local budget, available_at_us = wanted, nil
    if max_running ~= '0' then
      budget = min(budget, max(max_running - call('ZCARD', LEASES), 0))
    end
    if start_interval_us ~= '0' then
      -- GCRA: each start adds one interval of debt. A debt of more than the burst is from before
      -- the clock was set back, and is cut.
      local stored_tat = read_counter('tat')
      slow_path.tat = min(max(stored_tat, now_us), now_us + burst * start_interval_us)
      if slow_path.tat < stored_tat then
        call('HSET', QUEUE_META, 'tat', integer(slow_path.tat))
      end
      local allowed =
        floor((now_us + burst * start_interval_us - slow_path.tat) / start_interval_us)
      if allowed < budget then
        budget, available_at_us = allowed, slow_path.tat - (burst - 1) * start_interval_us
      end
    end
    return budget, available_at_us
  end
  function slow_path.charge_starts(n)
    if start_interval_us ~= '0' then
      call('HSET', QUEUE_META, 'tat', integer(slow_path.tat + n * start_interval_us))
    end
  end
  -- Deletes dead letters past their retention or beyond the limits, and resets stale byte counters.
  function slow_path.sweep()
    call('HSET', QUEUE_META, 'swept', integer(now_us))
    if is_empty then
      local byte_counters = call('HMGET', QUEUE_META, 'bytes', 'buried')
      if tonumber(byte_counters[2] or '0') > tonumber(max_dead_bytes) then purge_excess() end
      slow_path.has_more = purge_budget == 0
      if tonumber(byte_counters[1] or '0') ~= 0 then call('HSET', QUEUE_META, 'bytes', '0') end
      return
    end
    local expired_ids =
      call('ZRANGEBYSCORE', DEAD_LETTERS, '-inf', integer(now_us), 'LIMIT', '0', PAGE_SIZE)
    purge_dead_letters(expired_ids)
    purge_excess()
    -- The next poll, which then must come soon, deletes the others.
    slow_path.has_more = #expired_ids == PAGE_SIZE or purge_budget == 0
    -- The counted size of a vanished record is unknown: without tasks the count is 0.
    if call('EXISTS', WAITING, LEASES) == 0 and read_counter('bytes') ~= 0 then
      call('HSET', QUEUE_META, 'bytes', '0')
    end
  end
end

-- A poll must run at `maxmemory`, since it frees memory: see renew.lua. If it settles nothing but
-- plain successes, its first write is a ZREM anyway.
if has_special_settlements == '1' or not ARGV[2] then call('ZREM', LEASES, '') end
local outcomes = ''
if has_special_settlements == '0' and not ARGV[4] then
  -- One settlement at most, a plain success.
  if ARGV[2] then
    local run = ARGV[3]
    outcomes = tostring(call('ZREM', LEASES, run))
    if outcomes == '1' then
      local id = sub(run, 1, ID_LENGTH)
      call('HDEL', RECORDS, id)
      has_failure_notes = call('EXISTS', FAILURES) == 1
      if has_failure_notes then call('HDEL', FAILURES, id) end
      call('HINCRBY', QUEUE_META, 'bytes', '-' .. sub(ARGV[2], 2))
      call('HINCRBY', QUEUE_META, 'done', '1')
    end
  end
else
  local settlements, members, settled_members, done_ids, done_bytes, arg_index, outcome_list =
    {}, {}, {}, {}, 0, 2, {}
  while ARGV[arg_index] do
    local letter, byte_count, details = match(ARGV[arg_index], '^(%a)(%d+)(.*)$')
    local run, kind = ARGV[arg_index + 1], string.lower(letter)
    local settlement = {
      kind = kind, run = run, id = sub(run, 1, ID_LENGTH), bytes = tonumber(byte_count),
      details = details
    }
    arg_index = arg_index + 2
    if letter ~= kind then settlement.unique_key, arg_index = ARGV[arg_index], arg_index + 1 end
    settlements[#settlements + 1], members[#members + 1] = settlement, run
  end
  local lease_ends = call('ZMSCORE', LEASES, unpack(members))
  for i, settlement in ipairs(settlements) do
    outcome_list[i] = lease_ends[i] and '1' or '0'
    if lease_ends[i] then
      settled_members[#settled_members + 1] = settlement.run
      if settlement.kind == 'd' then
        done_ids[#done_ids + 1], done_bytes = settlement.id, done_bytes + settlement.bytes
        if settlement.unique_key then
          slow_path.release_unique_key(settlement.unique_key, settlement.id)
        end
      end
    end
  end
  outcomes = table.concat(outcome_list)
  call('ZREM', LEASES, unpack(settled_members[1] and settled_members or {''}))
  if done_ids[1] then
    call('HDEL', RECORDS, unpack(done_ids))
    has_failure_notes = call('EXISTS', FAILURES) == 1
    if has_failure_notes then call('HDEL', FAILURES, unpack(done_ids)) end
    call('HINCRBY', QUEUE_META, 'bytes', done_bytes > 0 and integer(-done_bytes) or '0')
    call('HINCRBY', QUEUE_META, 'done', integer(#done_ids))
  end
  for i, settlement in ipairs(settlements) do
    if lease_ends[i] and settlement.kind ~= 'd' then slow_path.settle_unsuccessful(settlement) end
  end
end
local more_lapsed = has_lapsed_leases and slow_path.reap_lapsed()

local startable, available_at_us = wanted, nil
if is_paused then
  startable, row_limit = 0, '1'
elseif has_limits then
  startable, available_at_us = slow_path.start_budget()
  row_limit = integer(startable + 1)
end
local micros = time[2]
local now_text = time[1] .. (#micros == 6 and micros or sub('00000' .. micros, -6))
-- Reads one more than may be started, to see if any due task is left.
local due_ids = is_empty and {}
  or call('ZRANGEBYSCORE', WAITING, '-inf', now_text, 'LIMIT', '0', row_limit)
local has_more_due = #due_ids > startable
if has_more_due then due_ids[#due_ids] = nil end
-- is_cut: due tasks are left because of MAX_READ_BYTES, or more leases have ended.
local started_ids, started_count, results, is_cut = '', 0, nil, false
if due_ids[1] then
  if has_failure_notes == nil then has_failure_notes = call('EXISTS', FAILURES) == 1 end
  local lease_end_us = integer(now_us + lease_us)
  -- Number of tasks that have left the waiting tasks.
  local removed_count = 1
  if not due_ids[2] then
    local id = due_ids[1]
    local record = call('HGET', RECORDS, id)
    call('ZREM', WAITING, id)
    if record then
      local attempt = has_failure_notes and match(call('HGET', FAILURES, id) or '0', '^%d+') + 1
        or '1'
      started_ids, started_count, results = id, 1, {id, attempt, record}
      call('ZADD', LEASES, lease_end_us, id .. run_suffix)
    elseif has_failure_notes then
      call('HDEL', FAILURES, id)
    end
  else
    local record_values, failure_values, all_ids, lease_args, read_bytes, portion_start =
      {}, {}, {}, {}, 0, 1
    results, removed_count = {}, 0
    for i, id in ipairs(due_ids) do
      -- Records are read in portions, so that few are read in vain if MAX_READ_BYTES ends the loop.
      if i == portion_start + #record_values then
        portion_start = i
        local portion_end = min(i + RECORDS_PER_READ - 1, #due_ids)
        record_values = call('HMGET', RECORDS, unpack(due_ids, i, portion_end))
        failure_values = has_failure_notes
          and call('HMGET', FAILURES, unpack(due_ids, i, portion_end)) or failure_values
      end
      local record, n = record_values[i - portion_start + 1], started_count
      if record then
        read_bytes = read_bytes + #record
        is_cut = n > 0 and read_bytes > MAX_READ_BYTES
        if is_cut then break end
        started_count, all_ids[n + 1] = n + 1, id
        lease_args[2 * n + 1], lease_args[2 * n + 2] = lease_end_us, id .. run_suffix
        results[3 * n + 1], results[3 * n + 2], results[3 * n + 3] =
          id, match(failure_values[i - portion_start + 1] or '0', '^%d+') + 1, record
      elseif has_failure_notes then
        call('HDEL', FAILURES, id)
      end
      removed_count = i
    end
    call('ZREM', WAITING, unpack(due_ids, 1, removed_count))
    started_ids = table.concat(all_ids)
    if started_count > 0 then call('ZADD', LEASES, unpack(lease_args)) end
  end
  if started_count < removed_count then
    call('HINCRBY', QUEUE_META, 'lost', integer(removed_count - started_count))
  end
  if has_limits and started_count > 0 then slow_path.charge_starts(started_count) end
end
if is_sweep_due then slow_path.sweep() end

-- If more leases have ended, the worker polls again at once, whatever else there is.
is_cut = is_cut or more_lapsed
has_more_due = has_more_due or is_cut
local spare_capacity, wait_us = is_cut and 0 or wanted - started_count, is_cut and '0' or '-1'
-- Due tasks that a pause or a limit holds back are no reason to poll again.
local is_held_back, goes_idle =
  has_more_due and not is_cut and (is_paused or startable < wanted),
  spare_capacity > 0 and idle_us ~= '0'
-- The next event is now if a due task is left, else the due time of the next task or the end of the
-- next lease.
local next_event_us = has_more_due and now_us or nil
if not has_more_due and not is_empty and not is_paused
  and (goes_idle or soonest_retry_us or guard == worker) then
  next_event_us = tonumber(call('ZRANGE', WAITING, '0', '0', 'WITHSCORES')[2])
end
if is_held_back then next_event_us = not is_paused and available_at_us or nil end
if goes_idle then
  first_lease_end_us = not is_empty
    and tonumber(call('ZRANGE', LEASES, '0', '0', 'WITHSCORES')[2])
  if first_lease_end_us then
    next_event_us = min(next_event_us or first_lease_end_us, first_lease_end_us)
  end
  -- Also if it is listed already: otherwise its entry would end before its next poll, and it could
  -- not be woken.
  call('ZADD', IDLE_WORKERS, integer(now_us + idle_us), worker)
  idle_state = (next_event_us or has_more_due or is_paused or slow_path.has_more) and '1' or '2'
  -- One idle worker, the timer worker (`guard`), polls at the next event. The others are woken, or
  -- poll when their idle time ends, in case that the timer worker has died.
  if next_event_us and (not guard or guard == worker or next_event_us < guarded_us) then
    call('HSET', QUEUE_META, 'guard',
      integer(now_us + idle_us) .. ' ' .. integer(next_event_us) .. ' ' .. worker)
    wait_us = integer(max(next_event_us - now_us, 0))
  end
else
  -- A worker that stops (idle time 0) must not be woken, whatever it knows of its entry.
  if idle_state == '1' or idle_us == '0' then call('ZREM', IDLE_WORKERS, worker) end
  idle_state = '0'
  if guard == worker then
    call('HDEL', QUEUE_META, 'guard')
    if next_event_us then wake_idle_worker(IDLE_WORKERS) end
  elseif has_more_due and not is_held_back then
    wake_idle_worker(IDLE_WORKERS)
  elseif soonest_retry_us and next_event_us and next_event_us == soonest_retry_us then
    local _, notify_sooner = make_notifiers(IDLE_WORKERS)
    notify_sooner(guard)
  end
end
call('SET', LAST_POLL, poll_number .. ' ' .. outcomes .. lapsed_counts .. ' ' .. started_ids,
  'PX', poll_ttl_ms)
idle_state = idle_state .. lapsed_counts
if started_count == 1 then
  return {outcomes, wait_us, idle_state, results[1], results[2], results[3]}
end
return {outcomes, wait_us, idle_state, unpack(results or {})}
